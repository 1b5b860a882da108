"""From SQL text to the algebra."""

__all__ = ["meaning", "view"]
