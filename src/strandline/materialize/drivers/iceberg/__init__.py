"""Iceberg as an endpoint: tables of a namespace of a catalog, filled by snapshots that pyiceberg commits."""
