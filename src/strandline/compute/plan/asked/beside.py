"""Where Spark is asked: beside the loop that ticks, answers and statements share, and not on it.

A plan asks Spark dozens of questions, and each may take seconds.  So what plans is called twice: first aside, where it
asks and its answers are remembered, then by its caller, from remembered answers alone.  Only the second result counts.
It was made without a pause, of the catalog as it was then; if that had changed meanwhile so that something new is to be
asked, both are done again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Final, TypeVar

from strandline.store.beside import Aside

T = TypeVar("T")


class Unanswered(BaseException):
    """Spark would have to be asked, and may not be asked here.  No code may take it for a failure."""


class GivenUp(BaseException):
    """The caller was cancelled, and takes no answer."""


_from_memory: Final[ContextVar[bool]] = ContextVar("from_memory", default=False)
_given_up: Final[ContextVar[threading.Event | None]] = ContextVar("given_up", default=None)


async def answered(call: Callable[[], T], aside: Aside | None) -> T:
    """Return what ``call`` returns, or raise what it raises; it awaits nothing, and may be called several times.

    ``aside``: where Spark may be asked; None: here.  Where this is cancelled, Spark is asked no further question.
    """
    if aside is None:
        return call()
    while True:
        try:
            return _remembered(call)
        except Unanswered:
            over = threading.Event()
            try:
                await aside(partial(_asked, call, over))
            finally:
                over.set()


def require_asking() -> None:
    """Return if Spark may be asked here.  Raises `Unanswered` or `GivenUp`."""
    if _from_memory.get():
        raise Unanswered
    over = _given_up.get()
    if over is not None and over.is_set():
        raise GivenUp


def _remembered(call: Callable[[], T]) -> T:
    before = _from_memory.set(True)
    try:
        return call()
    finally:
        _from_memory.reset(before)


def _asked(call: Callable[[], object], over: threading.Event) -> None:
    """Make ``call`` for its questions.  Its errors are raised; its result is of a moment that is over."""
    before = _given_up.set(over)
    try:
        call()
    finally:
        _given_up.reset(before)
