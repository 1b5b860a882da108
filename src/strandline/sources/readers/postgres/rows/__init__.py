"""Rows of PostgreSQL as typed columns: values, changes, and what a snapshot shows."""
