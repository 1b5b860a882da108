"""The orders that measure progress: times, frontiers, refreshes, source offsets.  No storage, no Spark."""

__all__ = ["antichain", "gauge", "moments", "pace", "refresh"]
