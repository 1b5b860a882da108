"""The author's SQL: its dialect, its trees, and what its functions are."""

__all__ = ["dialect"]
