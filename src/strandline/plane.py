"""The data plane, as the rooms that decide see it: rows are opaque, and each job is one named call.

Python decides, the JVM moves rows: a caller may pass `Rows` on but never look inside.  `Engine` is the only way to
Spark, and the whole of the data plane.  Its calls are declared by their callers:

- `Staging`: sources and steps write rows into shards.
- `Reading`: deliveries and checks read counts, samples, tables and batches of changes.
- `Evaluating`: steps and queries make new frames of frames, by a plan or plain SQL.
- `LookUps`: small windows find the parts of large contents that a small frame names.
- `Enveloping`: the envelopes of sources make updates of records.

A call may be in a hurry (`hurried`): then its jobs wait for no executors.  It may belong to a query (`asked_by`): then
its jobs run beside those of ticks, and are cancelled with it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from strandline.algebra.nodes import First, Node
from strandline.algebra.notation import Excerpt
from strandline.algebra.scalar import Condition
from strandline.algebra.schema import DIFF, Schema
from strandline.errors import InvalidUsage
from strandline.persist.handles.contents import Contents, Reads, RowJobs, Rows, StageRequest
from strandline.persist.shard.batch import Staged
from strandline.store.clock import Clock

NET_BATCH_ROWS: Final = 10_000
NET_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most rows and (about) the most bytes of one batch of `Reading.net`."""
SIGNIFICANT_DIGITS: Final = 12
"""Floats that were computed twice are equal when they agree to so many decimal digits: Spark adds them in no fixed
order."""
EXAMPLE_CHARS_MAX: Final = 300
"""How long the text of one row may be in a message."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The net updates of a frame: how many rows are missing and extra, and a sample of them with ``__diff``."""

    missing: int
    extra: int
    sample: pa.Table

    @property
    def example(self) -> str:
        """The first row of the sample as text, for a message; empty if there is none."""
        return example(self.sample)


@dataclass(frozen=True, slots=True)
class Errors:
    """The sum of an error half: how many errors, and the first of them in the order of their text."""

    count: int
    sample: tuple[str, ...] = ()


def example(sample: pa.Table) -> str:
    """Return the first row of a sample of differences as text; empty if there is none.

    >>> example(pa.table({"k": ["a"], "__diff": [-2]})), example(pa.table({"k": [], "__diff": []}))
    ("{'k': 'a'} (missing)", '')
    """
    for row in sample.slice(0, 1).to_pylist():
        sign = "missing" if row.pop(DIFF) < 0 else "too many"
        text = str(row)
        shown = text if len(text) <= EXAMPLE_CHARS_MAX else f"{text[:EXAMPLE_CHARS_MAX]}…"
        return f"{shown} ({sign})"
    return ""


class Counting(Reads, Protocol):
    """Reads what is stored, and counts errors: what asks only whether a collection may be read."""

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """Count the errors in a frame of the ERR half, ignoring times; ``of``: only those that name this collection."""
        ...

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """Return Σ diff at each time of the updates, ascending; for small frames."""
        ...


class Reading(Counting, Protocol):
    """Reads what is stored, and sums up frames: what delivers, counts and compares."""

    async def times(self, contents: Contents) -> Mapping[int, int]:
        """Return how many updates each time has, ascending: from statistics if they suffice, else by a small job."""
        ...

    def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the net changes in bounded batches: the columns, ``__diff``; each row once, its diff never 0.

        Rows that agree in ``key`` come one after the other, also across batches.  ``times``: keep the times; a column
        ``__time`` comes before ``__diff``, and earlier times come first: of each key, if there is one, and what of it
        has one time is in an order that is the same each time.  Raises as `read`.
        """
        ...

    async def multiset(self, rows: Rows) -> Rows:
        """Return the plain rows (no time, no diff) that the updates sum up to, each as often as its count.

        Raises (when the result is used) an error that names the row if a count is negative.
        """
        ...

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """Return the net updates, ignoring times; floats are compared to ``significant`` digits if given."""
        ...


class Aside(Protocol):
    """Rows that come from outside, table by table; see `Staging.aside`."""

    def add(self, table: pa.Table) -> None:
        """Put rows behind what is there, as `RowJobs.local` takes them.  Blocks; for one thread at a time.

        Raises:
            InvalidUsage: a column is missing, unknown, or cannot be cast; the message names it.
            Determinate: the machine refuses a temporary file.
        """
        ...

    def rows(self) -> Rows:
        """Return all of them as insertions at the time that was asked for; nothing is added after it."""
        ...


class Staging(RowJobs, Protocol):
    """Takes rows in and writes them: what sources and the stages of a wave need."""

    def aside(self, schema: Schema, *, time: int) -> AbstractContextManager[Aside]:
        """Return a place for rows that come from outside in many tables, whose memory does not grow with them.

        Its rows can be used until it is closed.
        """
        ...

    def arrivals(self, schema: Schema, *, keyed: bool) -> AbstractContextManager[Aside]:
        """Return a place as `aside` does, for what a reader made of its records: each has its own time and diff.

        A table has the columns of ``schema``, normalised, ``__time`` and ``__diff``; ``keyed``: those of
        `algebra.messages` too.  ``__error`` and `KEPT` may be left out.
        """
        ...

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """Do each `stage` as if alone, in as few jobs as possible; what one of them raises is its outcome."""
        ...

    def planned(self, shard: str) -> str:
        """Return how the rows of a shard were planned that were staged last: prepared, or why not; for people."""
        ...


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
    """The register of the queries that one environment answers.  Calls may come from any thread.

    Each query has a number, an owner and an end.  The engine looks at `present`, and runs what a query asks of it
    beside the jobs of ticks.  A stage of a query is a short text for people.  Work that a query begins, and that goes
    on after its end, belongs to no query.
    """

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


@dataclass(frozen=True, slots=True)
class Described:
    """The columns of a query's answer, and the type of each parameter, as its place shows it.

    ``outputs``: the numbers of parameters that are columns of the answer by themselves, with the places of these.

    It is found before there are values for the parameters.
    """

    columns: pa.Schema
    parameters: tuple[pa.DataType, ...]
    outputs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Edit:
    """The rows of a table for which ``where`` is true (None: all); their names may be qualified by ``alias``.

    ``values``: what columns (by name in lower case) become; empty: the rows are deleted.

    It says what an UPDATE or a DELETE does, in the words of its author.
    """

    alias: str
    where: Excerpt | None
    values: Mapping[str, Excerpt]

    @property
    def excerpts(self) -> tuple[Excerpt, ...]:
        """Its expressions, in the order of the text."""
        return (*self.values.values(), *([] if self.where is None else [self.where]))


class LookUps(Reads, Protocol):
    """Finds the rows that a small window touches.  Each call may return more rows than asked for, never fewer."""

    async def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[tuple[Rows, Sequence[str]]],
        *,
        nulls: bool,
        first: tuple[First, Rows] | None = None,
        span: bool = False,
        read: Collection[str] | None = None,
    ) -> Rows | None:
        """Return the rows of ``old`` whose ``columns`` have the values that some row of ``keys`` has in its columns.

        Without columns these are all rows, or if there are ``keys`` but no row in them, none.  Perhaps more rows are
        returned, never fewer, and none that was withdrawn; at ``old.advance``.  ``nulls``: NULL equals NULL; else it
        equals nothing.  ``read``: only these columns are returned, ``columns`` among them.  ``old`` begins at time 0.
        None: reading all of it is the better way, or the only one.

        ``first``: of the rows with one key (all rows, without columns) only the first matter, after any part of these
        updates has been added to ``old``.  So as many more are returned as the updates take away.

        ``span``: returns the rows whose one column has a value from the least to the greatest of the keys' values, of
        an exact type.  None if one of these is NULL, or if the diffs of ``keys`` are not 0 in all at each time.

        Raises `CorruptionError` as `read` does.
        """
        ...

    async def peek(
        self, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None = None
    ) -> pa.Table | None:
        """Return the rows of ``old`` whose ``columns`` have the values of a row of ``keys``: from memory, in no job.

        Exactly these, each as often as it is there, but at most ``limit`` of them, in any order.  ``keys`` has those
        columns in their order, of their own Arrow types; NULL equals NULL, and NaN equals NaN.  ``old`` begins at time
        0 and all its times are advanced to one.  If ``keys`` has no row, nothing is found, and ``old`` is brought into
        memory, or updated there.

        None: it is not in memory, or not at this time, or more rows are found than are handed over well.

        Raises `CorruptionError` as `read` does.
        """
        ...

    async def prune(self, old: Contents, column: str, keys: Sequence[tuple[Rows, str]], *, nulls: bool) -> Rows | None:
        """Return the rows of ``old`` whose ``column`` is between the least and the greatest value of ``keys`` (lazy).

        Those are values in a column of each.  ``nulls``: the rows with NULL too; they matter if a key is NULL.  Perhaps
        more are returned, never fewer.  None: reading all of ``old`` is as good, or the only way.  Raises
        `CorruptionError` as `read` does.
        """
        ...

    async def narrowed(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        """Return ``rows`` without those for which one of ``conditions`` is not true; some of these may remain."""
        ...

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """Return the updates of ``rows`` whose row occurs in ``to`` (lazy); the result may contain others too."""
        ...


@dataclass(slots=True)
class _Call:
    """A call in a hurry; tasks that it has begun, and that go on after its end, are in none."""

    lasts: bool = True


_CALL: Final[ContextVar[_Call | None]] = ContextVar("strandline_hurry", default=None)


@contextmanager
def hurried() -> Iterator[None]:
    """Be in a hurry until this is left, also in the coroutines that are begun here.

    Others wait for the end of such a call.  A job may wait a long time for executors of a cluster; the jobs of a call
    in a hurry do not.  If there is no executor, the engine cancels them within seconds, and the call raises
    `NoExecutor`.
    """
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


class Evaluating(Protocol):
    """Evaluates plans and plain SQL; results are lazy frames."""

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """Return the updates of ``node`` (lazy), whose `Get` leaves name ``frames``; not consolidated.

        The times that ``node`` names are relative to ``origin``, and no update of ``frames`` is before ``origin``.
        Trap: a plan that names absolute times is compiled anew at every step.
        """
        ...

    async def derived(self, node: Node, drafted: Mapping[str, tuple[Schema, Rows]]) -> Rows | None:
        """Return the updates of ``node`` (lazy) over frames that are about to be staged, as they will then be read.

        ``node`` names no times.  None: it is better, or only possible, to read them once they are staged.
        """
        ...

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """Return plain Spark's result of ``sql`` over the multisets of ``relations``: insertions at ``time`` (lazy).

        Raises `DefinitionError` if Spark refuses the text, or no collection could have its columns.
        """
        ...

    async def answer(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], given: Sequence[pa.Scalar] = ()
    ) -> tuple[pa.Schema, Rows]:
        """Return plain Spark's answer to ``sql`` over the multisets of ``relations``: plain rows (lazy), their columns.

        These have Spark's names and order, whatever they are, and the types that Arrow has for them.  ``given``: the
        values of the question marks of ``sql``.

        Raises `DefinitionError` if Spark refuses the text, `InvalidUsage` if it has no value for one of ``given``.
        """
        ...

    async def described(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], count: int, limits: Collection[int]
    ) -> Described:
        """Return what `answer` gives for ``sql``, with ``count`` question marks, and what values these want.

        ``limits``: the numbers of question marks that say how many rows.  Raises `DefinitionError` as `answer`.
        """
        ...


class Enveloping(LookUps, Protocol):
    """Makes updates of a source's records, by what the source's own collection held before them."""

    async def keyed(
        self, records: Rows, held: Rows | None, errors: Rows | None, schema: Schema, key: Sequence[str]
    ) -> Rows:
        """Return the updates that keyed ``records`` make (lazy; equal ones of both signs may remain).

        They are exact at every time: of each key and time the last record counts (`algebra.messages`), what was there
        before it goes, and what it says comes.  ``held``: the updates before all records, of these keys and perhaps
        others; ``errors``: those of the err half.  There is ``__error`` if there may be errors.
        """
        ...

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """Return ``rows``, all at ``time``, less the errors that cancel one another or one in ``held`` (lazy).

        An error cancels the error of the same record taken back: `algebra.messages` says which do.
        """
        ...


class Engine(Staging, Reading, Evaluating, Enveloping, Protocol):
    """Runs jobs over rows.  Calls are async; the work runs on Spark.  Cancelling a call does not undo it."""
