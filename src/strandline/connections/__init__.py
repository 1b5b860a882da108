"""How to reach the systems that are read from and pushed into: options that sources and endpoints share; and ports."""

__all__ = [
    "addresses",
    "delta",
    "iceberg",
    "iceberg_answers",
    "kafka",
    "logins",
    "mariadb",
    "ports",
    "postgres",
    "secrets",
]
