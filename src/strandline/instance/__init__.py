"""Instances: what runs of an environment.  An instance does what a controller commands, and knows no catalog."""

__all__ = [
    "beginnings",
    "commands",
    "connections",
    "equipment",
    "error_half",
    "instance",
    "live",
    "loop",
    "problems",
    "reports",
    "tables",
    "tasks",
]
