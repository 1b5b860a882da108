"""Readers: one way to read upstream a room or file, each with the entry that CREATE SOURCE finds it by."""
