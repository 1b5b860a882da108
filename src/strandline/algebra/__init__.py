"""The relational vocabulary that `engine` and `compute` share: schemas, plan nodes, maintenance nodes.

Plain frozen data; knows nothing of storage, of Spark, or of where a relation's rows come from.
"""
