"""A location: its catalog, its settings, the environment that writes there, and its times."""

__all__ = ["catalog", "config", "items", "on_error", "tenure", "version"]
