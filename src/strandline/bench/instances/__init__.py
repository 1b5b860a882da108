"""Benchmarks of environments in processes of their own: peeks, kills of controller and replicas, doing nothing."""

__all__ = ["failover", "idle", "peek"]
