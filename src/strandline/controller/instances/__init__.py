"""Instances as the controller sees them: what it commanded their replicas, and the times at which dataflows begin."""
