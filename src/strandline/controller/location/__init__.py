"""A location: its catalog, its settings, the environment that writes there, and its times."""
