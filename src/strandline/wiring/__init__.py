"""Wiring: the one room that names concrete stores, engines, connectors and drivers."""

__all__ = ["assemble", "consensuses", "locations", "loop", "page", "registry", "replicas", "stores"]
