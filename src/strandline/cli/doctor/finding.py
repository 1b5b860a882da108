"""Findings: what one check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """What a check came to."""

    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: ``found`` is one sentence without its full stop; ``act`` what to do, empty if it is ok.

    >>> str(Finding("java", State.MISSING, "none is found", "install one"))
    'missing  java: none is found; install one'
    """

    check: str
    state: State
    found: str
    act: str = ""

    def __post_init__(self) -> None:
        assert (self.state is State.OK) == (not self.act), "a fault says what to do"

    def __str__(self) -> str:
        return f"{self.state.value:8} {self.check}: {self.found}" + (f"; {self.act}" if self.act else "")


def ok(check: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(check, State.OK, found)


def missing(check: str, found: str, act: str) -> Finding:
    """Return that something is not there."""
    return Finding(check, State.MISSING, found, act)


def wrong(check: str, found: str, act: str) -> Finding:
    """Return that something is there, and is not as it must be."""
    return Finding(check, State.WRONG, found, act)
