"""A project: the settings by which its location is opened, and the files that define what is there."""

__all__ = ["files", "settings"]
