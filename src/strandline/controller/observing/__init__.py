"""How the items of a running environment are, from memory alone: what its console, its metrics and its log show."""

__all__ = ["adopted", "figures"]
