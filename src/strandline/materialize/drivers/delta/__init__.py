"""Delta Lake as an endpoint: a table is a directory below a path, filled by commits that deltalake makes."""
