"""The Kafka reader: options, the client of the broker, the client of a schema registry, and the reader itself."""
