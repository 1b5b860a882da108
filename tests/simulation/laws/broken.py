"""What a law says when it is broken."""

from __future__ import annotations


class LawBrokenError(AssertionError):
    """A law does not hold in this run.  ``law`` is its name in docs/reliability.md."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(law, message)  # both, so that it can be brought from one process to another
        self.law = law
        self.message = message

    def __str__(self) -> str:
        return f"law {self.law} is broken: {self.message}"


def require(law: str, holds: bool, message: str) -> None:
    """Raise `LawBrokenError` unless ``holds``."""
    if not holds:
        raise LawBrokenError(law, message)
