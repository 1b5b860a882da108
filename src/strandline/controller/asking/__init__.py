"""Asking: queries, verification, status, and what an operator does by hand."""

__all__ = ["housekeeping", "peeking", "reads", "selfcheck", "skip", "status", "verification", "wrong_replicas"]
