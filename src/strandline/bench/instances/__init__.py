"""`strandline bench peek`: what the processes of instances answer, and how fast."""

__all__ = ["failover", "idle", "peek"]
