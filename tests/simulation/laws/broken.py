"""What a law says when it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.errors import CorruptionError
from strandline.testing.simulation.kernel import StepBudgetExceeded


class LawBrokenError(AssertionError):
    """A law does not hold in this run.  ``law`` is its name in docs/reliability.md."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(law, message)  # both, so that it can be brought from one process to another
        self.law = law
        self.message = message

    def __str__(self) -> str:
        return f"law {self.law} is broken: {self.message}"


@contextmanager
def judged(damaged: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Let a run that does not end break law L1, and one that met corruption P5, unless something was ``damaged``."""
    try:
        yield
    except StepBudgetExceeded as error:
        raise LawBrokenError("L1", str(error)) from error
    except CorruptionError as error:
        if damaged():
            raise
        raise LawBrokenError("P5", str(error)) from error


def require(law: str, holds: bool, message: str) -> None:
    """Raise `LawBrokenError` unless ``holds``."""
    if not holds:
        raise LawBrokenError(law, message)
