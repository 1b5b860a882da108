"""Splits: a task as several that run side by side, each with a range of its keys."""

__all__ = ["task"]
