"""Upkeep: what keeps shards short, and what looks at them."""

__all__ = ["collect"]
