"""Benchmarks: each measures us and our peer in one run, interleaved, and returns every figure it used."""
