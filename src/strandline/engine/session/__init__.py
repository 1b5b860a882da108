"""Sessions: starting Spark, and what it takes to reach an object store."""

__all__ = ["class_archive", "start"]
