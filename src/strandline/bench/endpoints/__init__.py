"""Benchmarks of materializations: how fast rows reach an endpoint, and how closely transactions follow each other."""

__all__ = ["load", "materialize", "parallel", "pipelining"]
