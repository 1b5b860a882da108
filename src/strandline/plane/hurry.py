"""Hurry: what a caller says of a call while others wait for its end.

A job may wait for executors of a cluster for a long time.  The jobs of a call in a hurry do not: where there is no
executor, the engine cancels them within seconds, and the call raises `NoExecutor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class _Call:
    """A call in a hurry; tasks that it has begun, and that go on after its end, are in none."""

    lasts: bool = True


_CALL: Final[ContextVar[_Call | None]] = ContextVar("strandline_hurry", default=None)


@contextmanager
def hurried() -> Iterator[None]:
    """Be in a hurry until this is left, also in the coroutines that are begun here."""
    call = _Call()
    before = _CALL.set(call)
    try:
        yield
    finally:
        call.lasts = False
        _CALL.reset(before)


def in_hurry() -> bool:
    """Return whether the call that is made here is in a hurry."""
    call = _CALL.get()
    return call is not None and call.lasts
