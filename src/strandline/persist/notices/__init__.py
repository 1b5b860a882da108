"""Notices: how a reader learns that a shard has a new version.  A notice may be lost; only latency depends on it."""

__all__ = ["notify", "push"]
