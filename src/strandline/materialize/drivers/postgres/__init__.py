"""PostgreSQL: rows are copied to it, and merged by one statement."""
