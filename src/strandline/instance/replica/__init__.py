"""A replica: an instance that a controller in another process commands, and that outlives it."""

__all__ = ["replica"]
