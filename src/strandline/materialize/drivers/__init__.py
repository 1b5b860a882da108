"""The drivers that ship with Strandline, one endpoint a file."""

__all__ = ["duckdb"]
