"""The external dependencies as protocols (`Blob`, `Consensus`, `Clock`, `Ids`), implementations and doubles.

This package treats what it stores as plain bytes.
"""

__all__ = ["beside", "blob", "clock", "consensus", "keys", "memory", "postgres_forms", "seal", "secret", "system"]
