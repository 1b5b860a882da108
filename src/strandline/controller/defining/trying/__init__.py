"""Trying: a project is applied to a scratch copy of the catalog first, which becomes the catalog in one write."""

__all__ = ["anew"]
