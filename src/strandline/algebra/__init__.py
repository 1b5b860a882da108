"""The relational vocabulary that `engine` and `compute` share: schemas, plan nodes, maintenance nodes.

Plain frozen data, independent of storage, of Spark, and of where a relation's rows come from.
"""

__all__ = [
    "arrow_types",
    "careful",
    "conditions",
    "csv_header",
    "doubts",
    "excerpt",
    "first",
    "formats",
    "joins",
    "keyed",
    "messages",
    "nodes",
    "notation",
    "parquet_schema",
    "readable",
    "scalar",
    "schema",
    "stored",
    "stored_values",
    "types",
    "unavailable",
    "undecoded",
]
