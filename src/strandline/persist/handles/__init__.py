"""Handles: what a program holds of a shard, to write, to read, and to hold its past."""

__all__ = ["contents", "location", "read", "records", "register", "write"]
