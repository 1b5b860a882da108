"""Reductions: how the documents of one key combine, as the annotations of a JSON Schema say."""

__all__: list[str] = []
