"""Parquet or CSV files as an endpoint: numbered manifests say which files make up a table."""
