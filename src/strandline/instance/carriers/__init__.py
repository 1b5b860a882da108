"""Carriers of messages between a controller and a replica: in one process, and by Arrow Flight between two."""

__all__ = ["access", "exchange", "flight"]
