"""Introspection: what is known of an environment at one moment, as relations that queries read."""

__all__ = ["definition", "listed", "naming", "relations"]
