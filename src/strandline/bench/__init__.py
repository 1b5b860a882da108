"""Benchmarks: each measures Strandline and a peer in one run, interleaved, and returns all its figures."""

__all__ = ["alive", "appends", "consistency", "environment", "freshness", "ivm", "load", "persist", "tick", "written"]
