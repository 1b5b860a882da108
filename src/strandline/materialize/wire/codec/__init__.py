"""The messages of the wire, and the two ways in which they are bytes."""

__all__: list[str] = []
