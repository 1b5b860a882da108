"""Kafka as an endpoint: a topic gets what changed in a collection, exactly once."""
