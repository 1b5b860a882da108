"""SQLite: a file that every language can read."""
