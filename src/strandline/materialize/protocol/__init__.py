"""The protocol: messages, the state machine that judges them, and what both sides speak of."""

__all__ = ["task"]
