"""The clock source has one row at every time, and says the same of a slice whenever it is read."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import DefinitionError
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.sources.readers.clock import KIND, ClockOptions, ClockReader
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob
from strandline.testing.doubles import HandClock
from strandline.testing.lists.list_engine import ListEngine, listed

SCHEMA = Schema((Column("at", "timestamp"),))


def reader(clock: HandClock) -> ClockReader:
    """Return a reader of a clock that ticks each second, as a fresh process would open it."""
    return ClockReader(clock, ListEngine(MemoryBlob()), SCHEMA, 1_000)


def read(opened: ClockReader, *slices: Slice) -> Counter[tuple[datetime, int]]:
    """Return by row and time what the slices add up to."""
    found: Counter[tuple[datetime, int]] = Counter()
    for row in listed(asyncio.run(opened.read(slices, table="", locate=False))).rows:
        found[row["at"], row[TIME]] += row[DIFF]
    return found


def at(second: int) -> datetime:
    """Return the row after so many seconds."""
    return datetime.fromtimestamp(second, UTC)


def test_each_slice_withdraws_the_row_before_it() -> None:
    """Damage: a view sees two times at once, or none."""
    opened = reader(HandClock())
    slices = [Slice(7, NOTHING_READ, Offsets({"0": 3})), Slice(9, Offsets({"0": 3}), Offsets({"0": 5}))]
    assert read(opened, *slices) == {(at(3), 7): 1, (at(3), 9): -1, (at(5), 9): 1}
    assert read(opened, slices[1]) == read(reader(HandClock()), slices[1]) == {(at(3), 9): -1, (at(5), 9): 1}
    assert read(opened, Slice(11, Offsets({"0": 5}), Offsets({"0": 5}))) == {}


def test_a_clock_that_steps_back_stands_still() -> None:
    """Damage: the source stops, or rows that left a view come back, when a machine's time is set."""
    clock = HandClock()
    opened = reader(clock)
    start = asyncio.run(opened.upstream_frontier())
    asyncio.run(clock.sleep(2.5))
    later = asyncio.run(opened.upstream_frontier())
    assert later["0"] in (start["0"] + 2, start["0"] + 3)
    behind = reader(HandClock())
    asyncio.run(behind.commit(later))
    assert asyncio.run(behind.upstream_frontier()) == later


@pytest.mark.parametrize("types", [["date"], ["timestamp", "int"], []])
def test_a_clock_of_other_columns_is_refused(types: list[str]) -> None:
    """Damage: a source is defined that stops at its first row."""
    schema = Schema(tuple(Column(f"c{n}", each) for n, each in enumerate(types)))
    with pytest.raises(DefinitionError, match="one column, of type TIMESTAMP"):
        KIND.check(ClockOptions(every=1_000), schema)


def test_an_interval_of_nothing_is_refused() -> None:
    """Damage: the clock's offsets divide by zero."""
    with pytest.raises(DefinitionError, match="every is 0"):
        understood("source 'c'", ClockOptions, {"every": "0s"})
    assert understood("source 'c'", ClockOptions, {}).every == 1_000
