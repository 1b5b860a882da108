"""Kinds of `Blob`: where bytes are kept."""
