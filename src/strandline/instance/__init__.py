"""Instances: what runs of an environment.  An instance does what a controller commands, and knows no catalog."""

__all__ = [
    "beginnings",
    "commands",
    "connections",
    "error_half",
    "instance",
    "live",
    "loop",
    "problems",
    "replica",
    "reports",
    "tables",
    "tasks",
]
