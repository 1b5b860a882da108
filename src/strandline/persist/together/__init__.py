"""Together: several writers or several collections, at one time, all or nothing."""

__all__ = ["transactions"]
