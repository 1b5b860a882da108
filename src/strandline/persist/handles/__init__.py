"""Handles: what a program holds of a shard, to write, to read, and to hold its past."""

__all__ = ["definite", "location", "plane", "read", "records", "register", "since", "write"]
