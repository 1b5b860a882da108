"""Catalog, timestamps, project files and the wiring: the only place that names concrete classes."""
