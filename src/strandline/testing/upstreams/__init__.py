"""Upstreams in memory, and their readers: what tests of sources are made of."""
