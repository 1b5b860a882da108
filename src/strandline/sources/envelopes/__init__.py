"""Envelopes: what turns the records of a step into the updates that are staged."""

__all__ = ["choice"]
