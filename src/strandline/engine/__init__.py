"""Spark behind `plane.engine.Engine`: the only room that knows PySpark, SQL text and the JVM."""
