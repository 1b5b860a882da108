"""What a controller and a replica of an instance say to each other: messages as values, and as bytes."""

__all__ = ["carrier", "codec", "messages"]
