"""Sessions: starting Spark, and what it takes to reach an object store."""
