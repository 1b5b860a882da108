"""Changing: definitions that are there become others, and what reads them goes on."""

__all__ = ["order", "replacing", "tables"]
