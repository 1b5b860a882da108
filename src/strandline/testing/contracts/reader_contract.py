"""The contract of `SourceReader`, as a test suite that every reader and every double runs.

Subclass it in a test module and give it a fixture ``place``: a `Place`, which is one upstream that is empty when the
test begins.

    class TestMyReader(ReaderContract):
        @pytest.fixture
        def place(self, tmp_path): ...

Source: design page "sources" (reading is by range; sources to build: the contract suite).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeVar

import pytest

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import SourceError
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.plane import Engine
from strandline.sources.reader import SourceReader
from strandline.sources.reclock import NOTHING_READ, Slice

T = TypeVar("T")
Found: TypeAlias = Counter[tuple[Any, ...]]


class Place(Protocol):
    """One upstream, as the suite uses it."""

    engine: Engine

    async def reader(self) -> SourceReader:
        """Return a reader as a fresh process would open it."""
        ...

    async def produce(self, *, undecodable: bool = False) -> None:
        """Add some distinct messages; with ``undecodable`` one of them cannot be decoded."""
        ...

    async def break_promise(self) -> None:
        """Change or remove messages that a probe has announced and that were not committed."""
        ...


class ReaderContract:
    """The tests for every reader."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine."""
        return asyncio.run(coroutine)

    async def found(self, place: Place, reader: SourceReader, *slices: Slice, locate: bool = True) -> Found:
        """Read slices; return how often each row is there, errors and times included."""
        table = await place.engine.collect(await reader.read(slices, locate=locate))
        rows = table.to_pylist()
        assert all(row.pop(DIFF) == 1 for row in rows)
        there = (((name, repr(value)) for name, value in row.items() if value is not None) for row in rows)
        return Counter(tuple(sorted(row)) for row in there)

    def test_a_probe_covers_what_is_there_and_never_goes_back(self, place: Place) -> None:
        """Damage: messages are never read, or read at two times."""

        async def body() -> None:
            reader = await place.reader()
            empty = await reader.upstream_frontier()
            await place.produce()
            some = await reader.upstream_frontier()
            assert empty <= some != empty
            assert await reader.upstream_frontier() == some
            await place.produce()
            assert some <= await (await place.reader()).upstream_frontier() != some

        self.run(body())

    def test_reading_a_range_repeats(self, place: Place) -> None:
        """Damage: a time has other contents after a crash than before it."""

        async def body() -> None:
            first = await place.reader()
            await place.produce(undecodable=True)
            whole = Slice(7, NOTHING_READ, await first.upstream_frontier())
            once = await self.found(place, first, whole)
            await place.produce()
            await first.upstream_frontier()
            assert once
            assert await self.found(place, first, whole) == once
            assert await self.found(place, await place.reader(), whole) == once

        self.run(body())

    def test_ranges_adjoin(self, place: Place) -> None:
        """Damage: a message between two ticks is lost or doubled."""

        async def body() -> None:
            reader = await place.reader()
            marks = [NOTHING_READ]
            for _ in range(3):
                await place.produce()
                marks.append(await reader.upstream_frontier())
            parts: Found = Counter()
            for lower, upper in pairwise(marks):
                parts += await self.found(place, reader, Slice(7, lower, upper))
            assert await self.found(place, reader, Slice(7, marks[0], marks[-1])) == parts

        self.run(body())

    def test_each_slice_has_its_own_time_in_one_read(self, place: Place) -> None:
        """Damage: batching several ticks into a step changes the times of rows."""

        async def body() -> None:
            reader = await place.reader()
            await place.produce()
            middle = await reader.upstream_frontier()
            await place.produce(undecodable=True)
            early, late = Slice(7, NOTHING_READ, middle), Slice(9, middle, await reader.upstream_frontier())
            both = await self.found(place, reader, early, late)
            assert both == await self.found(place, reader, early) + await self.found(place, reader, late)
            assert {dict(row)[TIME] for row in both} == {"7", "9"}

        self.run(body())

    def test_locating_errors_leaves_the_good_rows_as_they_are(self, place: Place) -> None:
        """Damage: one bad message changes its neighbours."""

        async def body() -> None:
            reader = await place.reader()
            await place.produce(undecodable=True)
            await place.produce()
            whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
            halves = []
            for locate in (False, True):
                rows = await self.found(place, reader, whole, locate=locate)
                errors = {row: n for row, n in rows.items() if ERROR in dict(row)}
                assert sum(errors.values()) == 1
                halves.append(Counter({row: n for row, n in rows.items() if row not in errors}))
            assert halves[0] == halves[1] != Counter()

        self.run(body())

    def test_what_is_not_committed_can_be_read_after_a_restart(self, place: Place) -> None:
        """Law R4.  Damage: after a restart upstream has deleted messages that are not durable."""

        async def body() -> None:
            first = await place.reader()
            await place.produce()
            durable = await first.upstream_frontier()
            await place.produce()
            rest = Slice(7, durable, await first.upstream_frontier())
            wanted = await self.found(place, first, rest)
            for _ in range(2):
                await first.commit(durable)
            assert await self.found(place, first, rest) == wanted
            second = await place.reader()
            await second.commit(durable)
            assert durable <= await second.upstream_frontier()
            assert await self.found(place, second, rest) == wanted

        self.run(body())

    def test_what_is_committed_is_read_as_it_was_or_refused(self, place: Place) -> None:
        """Damage: upstream's retention overtakes a reader, and rows are skipped silently."""

        async def body() -> None:
            reader = await place.reader()
            await place.produce()
            whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
            wanted = await self.found(place, reader, whole)
            await reader.commit(whole.upper)
            try:
                assert await self.found(place, reader, whole) == wanted
            except SourceError:
                assert reader.bounded

        self.run(body())

    def test_a_broken_promise_is_an_error_and_never_other_rows(self, place: Place) -> None:
        """Damage: a bound range is read with other contents, silently."""

        async def body() -> None:
            reader = await place.reader()
            await place.produce()
            announced: Offsets = await reader.upstream_frontier()
            await place.break_promise()
            for each in (reader, await place.reader()):
                with pytest.raises(SourceError):
                    await self.found(place, each, Slice(7, NOTHING_READ, announced))

        self.run(body())
