"""Indexes: the contents of collections in memory, arranged by keys, and what is found in them without a Spark job."""

__all__ = ["index", "keys"]
