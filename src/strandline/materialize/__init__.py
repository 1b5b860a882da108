"""Exactly once, out: the transactional message protocol between the runtime and an endpoint's driver."""

__all__ = ["driver", "feed", "log", "reduced", "schedule", "splits", "status"]
