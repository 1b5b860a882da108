"""Arrangements: the contents of collections, sorted by keys, in local files: a cache for look-ups."""
