"""The outside dependencies as protocols (`Blob`, `Consensus`, `Clock`, `Ids`), their implementations and doubles.

Knows nothing of what is stored.
"""
