"""`strandline bench sources`: from an upstream to a durable collection, beside plain Spark that reads the same.

One file for each upstream.
"""

__all__ = ["kafka", "postgres"]
