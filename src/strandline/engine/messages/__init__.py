"""Messages: decoding the messages of a source, on Spark and in this process alike."""

__all__ = ["decoder"]
