"""Preparing: the next version of a location's views is computed beside the present one, and then put in its place."""

__all__ = ["preparation"]
