"""Parquet files: who reads their columns, and what Arrow reads."""
