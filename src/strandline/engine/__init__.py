"""Spark behind `persist.plane.Engine`: the only room that knows PySpark, SQL text and the JVM."""
