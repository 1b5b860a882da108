"""The external dependencies as protocols (`Blob`, `Consensus`, `Clock`, `Ids`), implementations and doubles.

This package treats what it stores as plain bytes.
"""

__all__ = ["clock", "memory", "postgres_forms", "protocols", "seal", "secret"]
