"""The terminal: how commands open a project, follow its files, print, and end."""
