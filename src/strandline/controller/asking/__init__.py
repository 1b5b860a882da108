"""Asking: queries, verification, status, and what an operator does by hand."""
