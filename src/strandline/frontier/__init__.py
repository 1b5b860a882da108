"""The orders that measure progress: times, frontiers of times, source offsets.  No storage, no Spark."""

__all__ = ["antichain", "gauge"]
