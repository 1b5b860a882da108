"""The files reader: a directory of CSV, JSON lines or Parquet files that grows."""
