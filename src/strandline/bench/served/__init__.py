"""Benchmarks of a running environment that programs write to and read from: clients, queries, CREATE, long keys."""

__all__ = ["creating", "keys", "runaway", "serving"]
