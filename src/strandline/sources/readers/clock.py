"""The clock source: one row, the time of the environment's clock, in whole intervals.

    CREATE SOURCE clock (at TIMESTAMP) USING clock OPTIONS (every '1s')

Views read it where they would say `now()`: ``WHERE seen > (SELECT max(at) FROM clock) - INTERVAL 1 HOUR``.  A view that
reads a clock that only it sees has no value that anyone could check; this one has, since the clock is an input like any
other.  Its row changes by a withdrawal and an insertion, at the tick that finds the interval over.

An offset is the number of intervals since 1970, so a slice says all of what is to be read, and reading repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError
from strandline.frontier import Offsets
from strandline.options import DURATION_MS, option
from strandline.persist.handles.contents import Rows
from strandline.plane import Staging
from strandline.sources.reader import ReaderKind, Records, Surroundings, TakenBack, side_by_side
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

PARTITION: Final = "0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOptions:
    """How fine the clock is."""

    every: int = option(
        DURATION_MS, "How long the row stays the same; what reads it may have work to do as often.", default="1s"
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if no time passes between two rows."""
        if self.every < 1:
            raise ValueError("every is 0: the clock needs an interval, as '1s'")


class ClockReader:
    """Reads the clock.  See `SourceReader`."""

    bounded = False

    def __init__(self, clock: Clock, engine: Staging, schema: Schema, every_ms: int) -> None:
        self._clock = clock
        self._engine = engine
        self._schema = schema
        self._every_ms = every_ms
        self._reached = NOTHING_READ

    def records(self, table: str) -> Records:
        """Return that rows are withdrawn: the one that goes, when the next one comes."""
        return TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """Return None: any time of the clock can be asked for."""
        return None

    def bound(self, offsets: Offsets) -> None:
        """See `TakesBounds`: the clock of another process may be ahead."""
        self._reached = self._reached.join(offsets)

    async def upstream_frontier(self) -> Offsets:
        """Return the number of whole intervals that are over; a clock that steps back stands still."""
        self._reached = self._reached.join(Offsets({PARTITION: max(0, self._clock.now_ms()) // self._every_ms}))
        return self._reached

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return for each slice the row that comes, and the withdrawal of the one that goes."""
        frames, negate = [], []
        for each in slices:
            for offset, gone in ((each.lower[PARTITION], True), (each.upper[PARTITION], False)):
                if offset and each.lower != each.upper:
                    frames.append(await self._row(offset, each.time))
                    negate.append(gone)
        return await self._engine.union(self._schema, frames, advance=0, negate=negate)

    async def _row(self, offset: int, time: int) -> Rows:
        at = _EPOCH + timedelta(milliseconds=offset * self._every_ms)
        (name,) = self._schema.names
        rows = pa.table({name: pa.array([at], pa.timestamp("us", "UTC"))})
        return await self._engine.local(rows, self._schema, time=time, diff=1)

    async def commit(self, resume: Offsets) -> None:
        """Remember how far the clock was: it does not go back behind what is durable."""
        self._reached = self._reached.join(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def close(self) -> None:
        """Nothing is open between calls."""


def _check(_: ClockOptions, schema: Schema) -> None:
    if [column.type for column in schema] != ["timestamp"]:
        raise DefinitionError(
            f"a clock has one column, of type TIMESTAMP, and not ({schema.ddl}): write (at TIMESTAMP)"
        )


async def _open(options: ClockOptions, given: Surroundings) -> ClockReader:
    return ClockReader(given.clock, given.engine, given.schema, options.every)


KIND: Final = ReaderKind("clock", ClockOptions, _open, _check, shared=side_by_side)
