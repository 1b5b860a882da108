"""`strandline bench sources`: from an upstream to a durable collection, beside plain Spark that reads the same.

One file for each upstream.  `upserts` compares an upsert with an append, and `endpoint` follows a row to an endpoint.
"""

__all__ = ["endpoint", "files", "kafka", "postgres", "upserts"]
