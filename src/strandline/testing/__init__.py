"""Contracts, doubles and the simulation kernel, for authors of stores, readers and drivers to test with."""
