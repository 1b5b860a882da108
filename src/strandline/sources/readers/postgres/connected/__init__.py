"""A real PostgreSQL server, spoken to by psycopg."""
