"""Connectors as child processes."""

__all__: list[str] = []
