"""Orders that progress is measured in: times, frontiers of times, source offsets; nothing of storage or Spark."""
