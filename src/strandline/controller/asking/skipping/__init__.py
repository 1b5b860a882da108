"""Skipping: a source goes on without records that cannot be decoded, or without files that are gone."""

__all__ = ["skip"]
