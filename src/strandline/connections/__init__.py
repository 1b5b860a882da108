"""How to reach the systems that are read from and pushed into: options that sources and endpoints share; and ports."""

__all__ = ["addresses", "iceberg_answers", "kafka", "lake", "logins", "mariadb", "postgres"]
