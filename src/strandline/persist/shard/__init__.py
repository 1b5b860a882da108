"""One shard: its state and its laws, its bytes, and its one commit path."""

__all__ = ["batch", "holds", "patience", "state", "trace"]
