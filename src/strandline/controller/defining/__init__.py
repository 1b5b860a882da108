"""Defining: CREATE and DROP, projects, and applying a project."""

__all__ = ["apply", "creating", "definitions", "instances", "project", "proposals"]
