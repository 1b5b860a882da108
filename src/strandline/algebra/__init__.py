"""The relational vocabulary that `engine` and `compute` share: schemas, plan nodes, maintenance nodes.

Plain frozen data, independent of storage, of Spark, and of where a relation's rows come from.
"""

__all__ = [
    "arrow_types",
    "careful",
    "messages",
    "nodes",
    "notation",
    "scalar",
    "schema",
    "stored",
    "types",
    "unavailable",
]
