"""Parts: the Parquet parts of a batch, written once, read, merged and checked."""

__all__ = ["aside", "part_store", "staging"]
