"""Definite collections: shards of ``(row, time, diff)`` updates that every reader reads alike, for ever.

Knows nothing of where rows come from; rows themselves pass through `plane.Engine` only.
"""
