"""Views: from SQL to plans, from plans to exact steps, from steps to shards that correct themselves."""

__all__ = ["care", "explain", "lookups", "stage", "step", "tick"]
