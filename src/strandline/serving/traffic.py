"""The traffic of a desk: which calls it has answered, how long each step of one took, and who follows what.

A *statement* is one call that reads or changes something.  One that makes another call is still one statement.  The
counters only grow; `Traffic.observe` is called with each statement once it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from strandline.store.clock import Clock

QUERY: Final = "query"
CHANGE: Final = "change"
"""The kinds of statements."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a statement: when it was begun (milliseconds since the epoch), and how many milliseconds it took."""

    name: str
    begun_ms: int
    ms: int


@dataclass(slots=True)
class Statement:
    """A statement, while it is under way and after; ``error``: the kind of what it raised."""

    kind: str
    begun_ms: int
    ms: int = 0
    error: str | None = None
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the statements of one kind were so far."""

    answered: int = 0
    failed: int = 0
    ms: int = 0


class Traffic:
    """See the module.  Any thread may call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._here = threading.local()
        self._counted = {QUERY: Counted(), CHANGE: Counted()}
        self._followed = 0
        self.observe: Callable[[Statement], None] = lambda _: None
        """Called with each statement, on the thread that has made it; must not raise."""

    @property
    def counted(self) -> dict[str, Counted]:
        """What was counted, by kind."""
        with self._lock:
            return dict(self._counted)

    @property
    def followed(self) -> int:
        """How many subscriptions are open."""
        return self._followed

    @contextmanager
    def statement(self, kind: str) -> Iterator[None]:
        """Count what happens inside as one statement."""
        if getattr(self._here, "statement", None) is not None:
            yield
            return
        made = self._here.statement = Statement(kind, self._clock.now_ms())
        try:
            yield
        except BaseException as error:
            made.error = type(error).__name__
            raise
        finally:
            self._here.statement = None
            made.ms = max(0, self._clock.now_ms() - made.begun_ms)
            failed = made.error is not None
            with self._lock:
                seen = self._counted[kind]
                self._counted[kind] = Counted(seen.answered + (not failed), seen.failed + failed, seen.ms + made.ms)
            self.observe(made)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note what happens inside as a step of the statement that is under way on this thread."""
        begun = self._clock.now_ms()
        try:
            yield
        finally:
            made: Statement | None = getattr(self._here, "statement", None)
            if made is not None:
                made.steps.append(Step(name, begun, max(0, self._clock.now_ms() - begun)))

    @contextmanager
    def subscription(self) -> Iterator[None]:
        """Count what happens inside as an open subscription."""
        with self._lock:
            self._followed += 1
        try:
            yield
        finally:
            with self._lock:
                self._followed -= 1


class _Busy(Protocol):
    traffic: Traffic


B = TypeVar("B", bound=_Busy)


def one_statement(kind: str) -> Callable[[Callable[Concatenate[B, P], R]], Callable[Concatenate[B, P], R]]:
    """Have each call of a method be a statement of this kind."""

    def decorate(method: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[B, P], R]:
        @wraps(method)
        def made(self: B, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.traffic.statement(kind):
                return method(self, *args, **kwargs)

        return made

    return decorate
