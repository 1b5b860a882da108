"""The terminal: how commands open a project, print, and end."""
