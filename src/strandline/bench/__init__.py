"""Benchmarks that ship with the package: each measures itself against its peer in the same run, interleaved, and returns every figure."""
