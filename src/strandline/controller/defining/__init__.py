"""Defining: CREATE and DROP, projects, and applying a project."""

__all__ = ["altering", "apply", "creating", "definitions", "project", "proposals", "relocating", "sources"]
