"""Strandline: SQL views kept exactly right on Spark, pushed exactly once into the systems people read from."""
