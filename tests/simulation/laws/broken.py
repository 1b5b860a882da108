"""What a law says when it is broken."""

from __future__ import annotations


class LawBrokenError(AssertionError):
    """A law does not hold in this run.  ``law`` is its name in docs/reliability.md."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"law {law} is broken: {message}")
        self.law = law


def require(law: str, holds: bool, message: str) -> None:
    """Raise `LawBrokenError` unless ``holds``."""
    if not holds:
        raise LawBrokenError(law, message)
