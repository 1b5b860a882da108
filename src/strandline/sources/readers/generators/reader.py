"""The generators' reader: events happen at a rate, and what an event does to each table is a function of its number.

An offset is a number of events.  The time at which the source was first asked is noted in its record shard; from then
on, each interval of the environment's clock brings as many events as the options say, also while nothing runs.  A
generator (`Load`) says which rows an event brings, from its number and the options alone.  So a slice says all of what
is to be read, reading repeats by construction, and upstream cannot break a promise.

Source: design page "sources" (load generators).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError
from strandline.frontier.gauge import Offsets
from strandline.options import DURATION_MS, INTEGER, option
from strandline.persist.handles.plane import Engine, Rows
from strandline.persist.handles.records import RecordShard
from strandline.sources.reader import Plain, Records, Surroundings, TakenBack
from strandline.sources.readers.recorded import note
from strandline.sources.readers.tabular.gathered import Gathering, Piece
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

PARTITION: Final = "0"
EVENTS_MADE: Final = 65_536
"""So many events' rows are made at a time."""
SMALL_EVENTS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How fast events come, how many, and which."""

    every: int = option(DURATION_MS, "The interval between events.", default="1s")
    batch: int = option(INTEGER, "How many events come together after each interval.", default="1")
    events: int | None = option(INTEGER, "No more events than so many; without it they never end.", default=None)
    seed: int = option(INTEGER, "Another seed makes other rows; the same one makes the same.", default="0")

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing would ever come."""
        for name in ("every", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1" + " ms" * (name == "every"))


class Load(Protocol):
    """What the events of a generator do."""

    tables: Mapping[str, Schema]
    """Each table's columns.  A generator that is one collection has the table ``""``."""

    kept: int | None
    """An event's rows are withdrawn again so many events later; None: never."""

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """Return the rows that the events from ``first`` on and before ``last`` insert into ``table``.

        A function of the numbers of these events, the options, and ``begun_ms``, when the source began.
        """
        ...


class Begun(msgspec.Struct, frozen=True):
    """When the source was first asked, on the environment's clock."""

    at_ms: int


class LoadReader:
    """Reads a generator.  See `SourceReader`."""

    bounded = False

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        schemas: Mapping[str, Schema],
        load: Load,
        options: LoadOptions,
        shard: RecordShard,
        epoch: int,
    ) -> None:
        self._clock = clock
        self._schemas = schemas
        self._load = load
        self._options = options
        self._shard = shard
        self._epoch = epoch
        self._begun: Begun | None = None
        self._reached = NOTHING_READ
        self._gathering = Gathering(engine)

    def records(self, table: str) -> Records:
        """Insertions only, unless rows leave again."""
        return Plain() if self._load.kept is None else TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """Every event can be read by range."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """Return how many events have happened; a clock that steps back stands still."""
        since_ms = self._clock.now_ms() - await self._begun_ms()
        happened = max(0, since_ms // self._options.every) * self._options.batch
        if self._options.events is not None:
            happened = min(happened, self._options.events)
        self._reached = self._reached.join(Offsets({PARTITION: happened}))
        return self._reached

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return for each slice the rows of its events, and the withdrawal of those that have their day."""
        begun_ms = await self._begun_ms()
        pieces = [piece for each in slices for piece in self._pieces(each, table, begun_ms)]
        return await self._gathering.rows(self._schemas[table], pieces)

    def _pieces(self, each: Slice, table: str, begun_ms: int) -> Iterator[Piece]:
        first, last = each.lower[PARTITION], each.upper[PARTITION]
        kept, names = self._load.kept, self._schemas[table].names

        def made(lower: int, upper: int) -> Iterator[pa.Table]:
            for start in range(lower, upper, EVENTS_MADE):
                found = self._load.rows(table, start, min(upper, start + EVENTS_MADE), begun_ms)
                yield _named(found, names, positional=not table)

        # An event that both comes and leaves within the slice does neither.
        if kept is None:
            yield Piece(each.time, 1, lambda: made(first, last))
        else:
            yield Piece(each.time, 1, lambda: made(max(first, last - kept), last))
            yield Piece(each.time, -1, lambda: made(max(0, first - kept), min(first, max(0, last - kept))))

    async def commit(self, resume: Offsets) -> None:
        """Remember how far the clock was: it does not go back behind what is durable."""
        self._reached = self._reached.join(resume)
        self._gathering.release(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether these are few events."""
        return sum(each.upper.messages_since(each.lower) for each in slices) <= SMALL_EVENTS_MAX

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def close(self) -> None:
        """Forget the rows that were made."""
        self._gathering.close()

    async def _begun_ms(self) -> int:
        if self._begun is None:
            self._begun = await note(self._shard, self._epoch, Begun(max(0, self._clock.now_ms())))
        return self._begun.at_ms
