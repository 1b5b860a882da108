"""Asking Spark: where that is done, and how little of a plan at a time."""

__all__ = ["beside"]
