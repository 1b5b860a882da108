"""Frames: what rows are to Spark and to Arrow, and what their failures mean."""

__all__ = ["failures", "inline", "rows"]
