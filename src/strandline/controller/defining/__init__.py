"""Defining: CREATE and DROP, projects, and applying a project."""

__all__ = ["altering", "apply", "creating", "definitions", "explaining", "proposals", "relocating", "sources"]
