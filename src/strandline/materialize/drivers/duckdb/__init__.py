"""DuckDB: a file, with Arrow tables as rows."""
