"""Kinds of `Consensus`: where versions are compared and set."""
