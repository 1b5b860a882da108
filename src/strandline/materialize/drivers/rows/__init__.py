"""What drivers share that keep rows as texts: rows as JSON, and the verdicts of those that can only be pushed to."""
