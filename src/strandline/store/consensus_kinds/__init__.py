"""Kinds of `Consensus`: where versions are compared and set."""

__all__ = ["object_consensus", "postgres", "sqlite", "sqlite_reader"]
