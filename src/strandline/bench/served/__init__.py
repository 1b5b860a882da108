"""Benchmarks of a running environment that clients write to and read from, each in a process of its own."""

__all__ = ["creating", "serving"]
