"""From SQL text to the algebra."""

__all__ = ["asked", "meaning", "sql", "view"]
