"""The controller: decides what an environment is and what its instance runs.  It touches no row."""

__all__ = ["assembly", "core", "holding", "readers"]
