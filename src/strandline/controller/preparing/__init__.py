"""Preparing: what a project says otherwise than its location is planned, applied, or computed beside what is there."""

__all__ = ["planned", "preparation"]
