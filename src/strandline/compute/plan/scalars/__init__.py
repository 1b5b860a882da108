"""Scalars: expressions and names of an author's query, and which of them are definite."""

__all__ = ["context", "order", "remembered"]
