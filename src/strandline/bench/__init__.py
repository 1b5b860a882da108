"""Benchmarks: each measures Strandline and a peer in one run, interleaved, and returns all its figures."""
