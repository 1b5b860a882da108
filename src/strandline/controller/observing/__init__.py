"""How the items of a running environment are, from memory alone: what its console and its metrics show."""

__all__ = ["acknowledging", "figures"]
