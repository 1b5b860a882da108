"""Asked: the queries that an environment answers now, each with a number, an owner and an end.

What a query asks of the engine is carried out beside what ticks ask: the engine looks at `present`.  A stage is a
short text for people.  Work that a query begins, and that goes on after its end, belongs to no query.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from strandline.errors import InvalidUsage
from strandline.store.clock import Clock

T = TypeVar("T")
HERE: Final = "this process"
"""Who asks where no client of a server does."""
COMMITS: Final = "commits"
WAITS: Final = "waits for its turn"
CATCHES_UP: Final = "waits for the last commit"
READS: Final = "reads its collections"
COMPUTES: Final = "computes"
_STOPPED: Final = "the statement was cancelled; nothing was changed"


@dataclass(slots=True, eq=False)
class Query:
    """A query that is answered now.  ``since_ms``: when it was asked; ``end``: cancels it."""

    number: int
    who: str
    text: str
    since_ms: int
    end: Callable[[], object]
    stage: str = WAITS
    lasts: bool = True
    stopped: bool = False
    inside: Callable[[], object] | None = None
    """Ends what is awaited inside `until_stopped` now."""

    def stop(self) -> None:
        """End what the query does inside `until_stopped`, now or as soon as it comes there; from any thread."""
        self.stopped = True
        if (inside := self.inside) is not None:
            inside()

    def told(self, now_ms: int) -> dict[str, Any]:
        """Return what ``strandline queries --json`` says of it."""
        return {
            "number": self.number,
            "who": self.who,
            "since": self.since_ms,
            "ms": max(0, now_ms - self.since_ms),
            "stage": self.stage,
            "text": self.text,
        }


_QUERY: Final[ContextVar[Query | None]] = ContextVar("strandline_query", default=None)
_WHO: Final[ContextVar[str]] = ContextVar("strandline_who", default=HERE)


class Queries:
    """The register of the queries that one environment answers.  Calls may come from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._now: dict[int, Query] = {}

    @contextmanager
    def asked(self, text: str, end: Callable[[], object]) -> Iterator[Query]:
        """List a query until this is left, and yield it; a call that a listed query makes is part of that query."""
        outer = present()
        if outer is not None:
            yield outer
            return
        query = Query(next(self._numbers), _WHO.get(), text, self._clock.now_ms(), end)
        with self._lock:
            self._now[query.number] = query
        before = _QUERY.set(query)
        try:
            yield query
        finally:
            query.lasts = False
            _QUERY.reset(before)
            with self._lock:
                del self._now[query.number]

    def now(self) -> list[Query]:
        """Return the queries that are answered now, in the order in which they were asked."""
        with self._lock:
            return list(self._now.values())

    def told(self) -> list[dict[str, Any]]:
        """Return what is said of each: see `Query.told`."""
        return [query.told(self._clock.now_ms()) for query in self.now()]

    def cancel(self, number: int) -> bool:
        """Cancel a query; return whether there is one with this number."""
        with self._lock:
            query = self._now.get(number)
        if query is None:
            return False
        query.end()
        return True


@asynccontextmanager
async def until_stopped() -> AsyncIterator[None]:
    """Have `Query.stop` end what is awaited inside, and nothing else that the query does.

    Raises `InvalidUsage` then: where what is inside changes nothing, nothing was changed.
    """
    query = present()
    if query is None:
        yield
        return
    loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)

    def soon() -> object:
        return loop.call_soon_threadsafe(end)

    def end() -> None:
        if query.inside is soon:
            scope.reschedule(loop.time())

    try:
        async with scope:
            query.inside = soon
            if query.stopped:
                raise InvalidUsage(_STOPPED)
            yield
            query.inside = None
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise InvalidUsage(_STOPPED) from error
    finally:
        query.inside = None


@contextmanager
def asked_by(who: str) -> Iterator[None]:
    """Have the queries that are asked inside belong to ``who``."""
    before = _WHO.set(who)
    try:
        yield
    finally:
        _WHO.reset(before)


def present() -> Query | None:
    """Return the query that is answered here; None: what is done here belongs to none."""
    query = _QUERY.get()
    return query if query is not None and query.lasts else None


def at_stage(stage: str) -> None:
    """Say what the query does now that is answered here, if one is."""
    query = present()
    if query is not None:
        query.stage = stage


def one_by_one(what: str, things: Sequence[T]) -> Iterator[T]:
    """Yield ``things``, and say of each that the query does ``what`` with it, and which one of how many it is."""
    for count, thing in enumerate(things, 1):
        at_stage(f"{what} {count} of {len(things)}")
        yield thing


def deploying(project: str, *, apply: bool) -> str:
    """Return the text under which the plan of a project, or its application, stands in the register."""
    return f"{'apply' if apply else 'plan'} {project}"


def verifying(name: str) -> str:
    """Return the text under which the verification of ``name`` stands in the register of running queries."""
    return f"verify {name}"
