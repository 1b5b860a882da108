"""Wiring: the one room that names concrete stores, engines, connectors and drivers."""

__all__ = ["assemble", "locations", "loop", "registry", "replicas", "stores"]
