"""Schedules: when a materialization begins its transactions."""

__all__ = ["pace", "paced", "window"]
