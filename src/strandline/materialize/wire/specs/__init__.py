"""What is materialized, in Flow's words: specifications, schemas, the choice of fields, checkpoints."""

__all__: list[str] = []
