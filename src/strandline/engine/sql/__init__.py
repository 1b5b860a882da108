"""SQL: plans as text, Spark's analysis of them, and plain queries."""

__all__ = ["analysis", "error_half", "rendering"]
