"""PostgreSQL for tests and benchmarks of sources: a server in memory, and statements to a real one."""
