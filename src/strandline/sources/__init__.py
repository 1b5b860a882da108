"""Sources: upstream messages become definite collections on one time, and are never read twice once durable."""

__all__ = ["envelopes", "ingest", "kinds", "question", "reader", "reclock", "remap", "status", "steps"]
