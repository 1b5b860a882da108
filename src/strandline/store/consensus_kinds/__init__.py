"""Kinds of `Consensus`: where versions are compared and set."""

from typing import Final

SCHEMA_DEFAULT: Final = "strandline"
"""The schema of a database that keeps states, if none is named."""
