"""Rows: which task gives which of them, and how they are read from parts, without Spark and without a JVM."""
