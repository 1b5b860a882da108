"""The language: statements as data, and what the public calls take."""

__all__ = ["altering", "arguments", "cursor", "instances", "literals", "showing", "statements"]
