"""Sessions: starting Spark, the functions of its user, and what it takes to reach an object store."""

__all__ = ["class_archive", "cluster", "executors", "functions", "kafka_jars", "start", "workers"]
