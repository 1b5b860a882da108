"""Spark behind `plane.Engine`: the only room that knows PySpark, SQL text and the JVM."""
