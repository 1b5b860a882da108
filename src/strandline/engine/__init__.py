"""Spark behind `persist.handles.plane.Engine`: the only room that knows PySpark, SQL text and the JVM."""
