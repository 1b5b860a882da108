"""Redis as an endpoint: a key for each row."""
