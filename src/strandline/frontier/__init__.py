"""Orders that progress is measured in: times, frontiers of times, source offsets.  Knows nothing of storage or
Spark.
"""
