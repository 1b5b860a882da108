"""The generators' reader: events happen at a rate, and what an event does to each table is a function of its number.

An offset is a number of events.  The time at which the source was first opened is noted in its record shard; from then
on, each interval of the environment's clock brings as many events as the options say, also while no process runs.  A
generator (`Load`) says which rows an event brings, from its number and the options alone.  So a slice determines its
rows, reading repeats by construction, and upstream cannot break a promise.

Random-looking numbers are functions of a seed, a purpose and the number of an event: splitmix64's finalizer, over whole
arrays.  No state goes from one event to the next, so event 1 000 000 costs what event 1 does.

Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators" (2014), section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError
from strandline.frontier import Offsets
from strandline.options import COUNT, DURATION_MS, option
from strandline.persist.handles.contents import Rows
from strandline.plane import Staging
from strandline.sources.kinds import Discovered, Discovery
from strandline.sources.reader import Plain, ReaderKind, Records, Surroundings, TakenBack, side_by_side
from strandline.sources.readers.recorded import note
from strandline.sources.readers.tabular import Gathering, Piece
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

O = TypeVar("O", bound="LoadOptions")  # noqa: E741 - the options of a generator

PARTITION: Final = "0"
EVENTS_MADE: Final = 65_536
"""So many events' rows are made at a time."""
SMALL_EVENTS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How fast events come, how many, and which."""

    every: int = option(DURATION_MS, "The interval between events.", default="1s")
    batch: int = option(COUNT, "How many events come together after each interval.", default="1")
    events: int | None = option(COUNT, "No more events than so many; without it they never end.", default=None)
    seed: int = option(COUNT, "Another seed makes other rows; the same one makes the same.", default="0")

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing would ever come."""
        for name in ("every", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1" + " ms" * (name == "every"))


class Load(Protocol):
    """What the events of a generator do."""

    @property
    def tables(self) -> Mapping[str, Schema]:
        """Each table's columns.  A generator that is one collection has the table ``""``."""
        ...

    @property
    def kept(self) -> int | None:
        """How many events later an event's rows are withdrawn again; None: never."""
        ...

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """Return the rows that the events from ``first`` on and before ``last`` insert into ``table``.

        A function of the numbers of these events, the options, and ``begun_ms``, when the source began.
        """
        ...


class Begun(msgspec.Struct, frozen=True):
    """When the source was first opened, on the environment's clock."""

    at_ms: int


class LoadReader:
    """Reads a generator.  See `SourceReader`."""

    bounded = False

    def __init__(
        self,
        clock: Clock,
        engine: Staging,
        schemas: Mapping[str, Schema],
        load: Load,
        options: LoadOptions,
        begun_ms: int,
    ) -> None:
        self._clock = clock
        self._schemas = schemas
        self._load = load
        self._options = options
        self._begun_ms = begun_ms
        self._reached = NOTHING_READ
        self._gathered = {table: Gathering(engine) for table in schemas}

    def records(self, table: str) -> Records:
        """Insertions only, unless rows leave again."""
        return Plain() if self._load.kept is None else TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """Every event can be read by range."""
        return None

    def bound(self, offsets: Offsets) -> None:
        """See `TakesBounds`: another process, whose clock is ahead, may have bound more than has happened here."""
        self._reached = self._reached.join(offsets)

    async def upstream_frontier(self) -> Offsets:
        """Return how many events have happened; a clock that steps back stands still."""
        since_ms = self._clock.now_ms() - self._begun_ms
        happened = max(0, since_ms // self._options.every) * self._options.batch
        if self._options.events is not None:
            happened = min(happened, self._options.events)
        self._reached = self._reached.join(Offsets({PARTITION: happened}))
        return self._reached

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return for each slice the rows of its events, and the withdrawal of those that have their day."""
        pieces = [piece for each in slices for piece in self._pieces(each, table)]
        return await self._gathered[table].rows(self._schemas[table], pieces, slices[-1].upper)

    def _pieces(self, each: Slice, table: str) -> Iterator[Piece]:
        first, last = each.lower[PARTITION], each.upper[PARTITION]
        kept, schema = self._load.kept, self._schemas[table]

        def made(lower: int, upper: int) -> Iterator[pa.Table]:
            for start in range(lower, upper, EVENTS_MADE):
                found = self._load.rows(table, start, min(upper, start + EVENTS_MADE), self._begun_ms)
                yield found.rename_columns(list(schema.names)) if not table else _chosen(found, schema)

        # An event that both comes and leaves within the slice does neither.
        if kept is None:
            yield Piece(each.time, 1, lambda: made(first, last))
        else:
            yield Piece(each.time, 1, lambda: made(max(first, last - kept), last))
            yield Piece(each.time, -1, lambda: made(max(0, first - kept), min(first, max(0, last - kept))))

    async def commit(self, resume: Offsets) -> None:
        """Remember how far the clock was: it does not go back behind what is durable."""
        self._reached = self._reached.join(resume)
        for each in self._gathered.values():
            each.release(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether these are few events."""
        return sum(each.upper.messages_since(each.lower) for each in slices) <= SMALL_EVENTS_MAX

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def close(self) -> None:
        """Forget the rows that were made."""
        for each in self._gathered.values():
            each.close()


def _chosen(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return the declared columns of what an event brings, found by name without case."""
    there = {name.lower(): name for name in rows.column_names}
    return rows.select([there[name.lower()] for name in schema.names]).rename_columns(list(schema.names))


def check_table(load: Load, system: str, reference: str, schema: Schema) -> None:
    """Raise `DefinitionError` unless ``schema`` is some columns of the table ``reference``, with their types."""
    if reference not in load.tables:
        raise DefinitionError(f"{system} has no table {reference!r}; it has {', '.join(sorted(load.tables))}")
    there = {column.name.lower(): column for column in load.tables[reference]}
    if not reference:  # one collection, whose one column may have any name
        only = next(iter(there.values()))
        there = {schema.names[0].lower(): Column(schema.names[0], only.type)}
    for column in schema:
        known = there.get(column.name.lower())
        if known is None or known.type != column.type:
            raise DefinitionError(
                f"column {column.name!r} {column.type}: "
                f"{system}{reference and f' table {reference!r}'} has ({load.tables[reference].ddl})"
            )


def kind_of(name: str, options: type[O], load_of: Callable[[O], Load], *, tables: bool = True) -> ReaderKind[O]:
    """Return the entry of a generator for the registry; ``tables``: it has several, and is no collection itself."""

    async def open_it(given: O, around: Surroundings) -> LoadReader:
        load = load_of(given)
        for table, schema in around.schemas.items():
            check_table(load, name, table, schema)
        begun = await note(await around.progress(), around.epoch, Begun(max(0, around.clock.now_ms())))
        return LoadReader(around.clock, around.engine, around.schemas, load, given, begun.at_ms)

    def check(given: O, reference: str, schema: Schema) -> None:
        check_table(load_of(given), name, reference, schema)

    def check_only(given: O, schema: Schema) -> None:
        check(given, "", schema)

    async def find(given: O) -> Sequence[Discovered]:
        return [Discovered(table, schema) for table, schema in sorted(load_of(given).tables.items())]

    return ReaderKind(
        name,
        options,
        open_it,
        check_only,
        tables=tables,
        check_table=check,
        discovery=Discovery(options, find) if tables else None,
        shared=side_by_side,
    )


Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def words(seed: int, purpose: str, events: Integers) -> Words:
    """Return 64 bits for each of ``events``: those of another purpose or seed say nothing about them.

    >>> words(0, "bids", np.array([0, 1])).tolist() == words(0, "bids", np.array([0, 1, 2])).tolist()[:2]
    True
    """
    start = np.uint64(xxhash.xxh64_intdigest(purpose.encode(), seed % 2**64))
    with np.errstate(over="ignore"):  # wrapping around is what these multiplications are for
        mixed = start + (events.astype(np.uint64) + np.uint64(1)) * _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def below(seed: int, purpose: str, events: Integers, limit: int | Integers) -> Integers:
    """Return for each of ``events`` an integer from 0 on and before ``limit``, each about as likely as another."""
    return np.asarray(words(seed, purpose, events) % np.asarray(limit).astype(np.uint64)).astype(np.int64)
