"""Asking: queries, verification, status, and what an operator does by hand."""

__all__ = [
    "backfill",
    "housekeeping",
    "peeking",
    "progress",
    "reads",
    "selfcheck",
    "status",
    "verification",
    "wrong_replicas",
]
