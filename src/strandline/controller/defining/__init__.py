"""Defining: CREATE and DROP, projects, and applying a project."""
