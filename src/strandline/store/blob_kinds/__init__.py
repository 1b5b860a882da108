"""Kinds of `Blob`: where bytes are kept."""

__all__ = ["cache", "file", "objects", "reading"]
