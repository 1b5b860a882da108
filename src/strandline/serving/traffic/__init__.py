"""What clients ask of a desk, counted for people who watch."""

__all__ = ["counting"]
