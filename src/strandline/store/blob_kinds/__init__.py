"""Kinds of `Blob`: where bytes are kept."""

__all__ = ["object_location"]
