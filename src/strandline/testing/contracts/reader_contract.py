"""The contract of `SourceReader`, as a test suite that every reader and every double runs.

Subclass it in a test module and give it a fixture ``place``: a `Place`, which is one upstream that is empty when the
test begins.

    class TestMyReader(ReaderContract):
        @pytest.fixture
        def place(self, tmp_path): ...
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeVar

import pytest

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import SourceError
from strandline.frontier import Offsets
from strandline.plane import Engine
from strandline.sources.kinds import TakesBounds
from strandline.sources.reader import Keyed, SourceReader, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice

T = TypeVar("T")
Found: TypeAlias = Counter[tuple[Any, ...]]


class Place(Protocol):
    """One upstream, as the suite uses it.

    ``table``: what upstream calls the collection that is read; "" where the source is one collection.  A table that
    begins with a snapshot has a row already.
    """

    engine: Engine
    table: str

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

    async def whole(self, place: Place, reader: SourceReader) -> Slice:
        """Return all that is there, as a first step takes it: from the snapshot, if there is one."""
        begun = await reader.snapshot(place.table)
        ready = await reader.upstream_frontier()
        return Slice(7, NOTHING_READ, ready if begun is None else ready.join(begun))

    async def found(self, place: Place, reader: SourceReader, *slices: Slice, locate: bool = True) -> Found:
        """Read slices; return how often each record is there, errors, times and diffs included."""
        found: Found = Counter()
        for row in await self.records(place, reader, *slices, locate=locate):
            row.pop(ORDER, None)  # it says which of two records is newer, within one read
            found[_said(row)] += 1
        return found

    async def records(
        self, place: Place, reader: SourceReader, *slices: Slice, locate: bool = True
    ) -> list[dict[str, Any]]:
        """Read slices; return the records as rows."""
        table = await place.engine.collect(await reader.read(slices, table=place.table, locate=locate))
        rows: list[dict[str, Any]] = table.to_pylist()
        allowed = {1, -1} if reader.records(place.table) == TakenBack() else {1}
        assert {row[DIFF] for row in rows} <= allowed
        return rows

    async def held(self, place: Place, reader: SourceReader, *reads: Sequence[Slice]) -> Found:
        """Read slices, one read after the other; return what the table holds then, errors included, without times."""
        kind, newest, found = reader.records(place.table), dict[Any, dict[str, Any]](), Found()
        for slices in reads:
            rows = await self.records(place, reader, *slices)
            for row in sorted(rows, key=lambda row: (row[TIME], row.get(ORDER) or 0)):
                diff = row.pop(DIFF)
                del row[TIME]
                if isinstance(kind, Keyed) and row[GONE] is not None:
                    key = tuple(row[name] for name in kind.key)
                    row = _merged(newest.pop(key, {}), row)  # noqa: PLW2901 - what it says, with what stays
                    if not row.pop(GONE):
                        newest[key] = row
                else:
                    row.pop(GONE, None)
                    found[_said(row)] += diff
        found.update(map(_said, newest.values()))
        assert all(count >= 0 for count in found.values())
        return +found

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
            begun = (await self.whole(place, first)).upper
            await place.produce(undecodable=True)
            rest = Slice(7, begun, await first.upstream_frontier())
            once = await self.found(place, first, rest)
            await place.produce()
            await first.upstream_frontier()
            assert once
            assert await self.found(place, first, rest) == once
            assert await self.found(place, await place.reader(), rest) == once

        self.run(body())

    def test_a_table_begins_with_all_that_is_there(self, place: Place) -> None:
        """Damage: rows that were there before the source was defined are missing, or doubled."""

        async def body() -> None:
            await place.produce()
            await place.produce()
            first, second = await place.reader(), await place.reader()
            all_of_it = await self.whole(place, first)
            wanted = await self.held(place, first, [all_of_it])
            assert wanted
            assert not [row for row in wanted if ERROR in dict(row)]
            again = await self.whole(place, second)
            later = Slice(8, all_of_it.upper, all_of_it.upper.join(again.upper))
            assert await self.held(place, second, [again]) == await self.held(place, first, [all_of_it], [later])

        self.run(body())

    def test_ranges_adjoin(self, place: Place) -> None:
        """Damage: a message between two ticks is lost or doubled."""

        async def body() -> None:
            reader = await place.reader()
            marks = [(await self.whole(place, reader)).upper]
            for _ in range(3):
                await place.produce()
                marks.append(await reader.upstream_frontier())
            parts: Found = Counter()
            for lower, upper in pairwise(marks):
                parts += await self.found(place, reader, Slice(7, lower, upper))
            assert await self.found(place, reader, Slice(7, marks[0], marks[-1])) == parts

        self.run(body())

    def test_what_comes_after_the_first_step_continues_it(self, place: Place) -> None:
        """Damage: a row that changed while the snapshot was taken is lost or doubled."""

        async def body() -> None:
            reader = await place.reader()
            await place.produce()
            first = await self.whole(place, reader)
            await place.produce()
            later = Slice(8, first.upper, await reader.upstream_frontier())
            wanted = await self.held(place, reader, [first], [later])
            fresh = await place.reader()
            assert await self.held(place, fresh, [await self.whole(place, fresh)]) == wanted

        self.run(body())

    def test_each_slice_has_its_own_time_in_one_read(self, place: Place) -> None:
        """Damage: batching several ticks into a step changes the times of rows."""

        async def body() -> None:
            reader = await place.reader()
            begun = (await self.whole(place, reader)).upper
            await place.produce()
            middle = await reader.upstream_frontier()
            await place.produce(undecodable=True)
            early, late = Slice(7, begun, middle), Slice(9, middle, await reader.upstream_frontier())
            both = await self.found(place, reader, early, late)
            assert both == await self.found(place, reader, early) + await self.found(place, reader, late)
            assert {dict(row)[TIME] for row in both} == {"7", "9"}

        self.run(body())

    def test_locating_errors_leaves_the_good_rows_as_they_are(self, place: Place) -> None:
        """Damage: one bad message changes its neighbours."""

        async def body() -> None:
            reader = await place.reader()
            begun = (await self.whole(place, reader)).upper
            await place.produce(undecodable=True)
            await place.produce()
            rest = Slice(7, begun, await reader.upstream_frontier())
            halves = []
            for locate in (False, True):
                rows = await self.found(place, reader, rest, locate=locate)
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
            durable = (await self.whole(place, first)).upper
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
            begun = (await self.whole(place, reader)).upper
            await place.produce()
            rest = Slice(7, begun, await reader.upstream_frontier())
            wanted = await self.found(place, reader, rest)
            await reader.commit(rest.upper)
            try:
                assert await self.found(place, reader, rest) == wanted
            except SourceError:
                assert reader.bounded

        self.run(body())

    def test_a_broken_promise_is_an_error_and_never_other_rows(self, place: Place) -> None:
        """Damage: a bound range is read with other contents, silently."""

        async def body() -> None:
            reader = await place.reader()
            begun = (await self.whole(place, reader)).upper
            await place.produce()
            announced: Offsets = await reader.upstream_frontier()
            await place.break_promise()
            for each in (reader, await place.reader()):
                with pytest.raises(SourceError):
                    await self.found(place, each, Slice(7, begun, announced))

        self.run(body())


class SharedReaderContract(ReaderContract):
    """The tests for readers that several processes may have of one source at once (`ReaderKind.shared`)."""

    def test_two_at_once_bind_and_read_the_same(self, place: Place) -> None:
        """Damage: two replicas make different rows of one source durable, or the slower one stands still."""

        async def body() -> None:
            first, second = await place.reader(), await place.reader()
            await place.produce()
            begun = await self.whole(place, first)
            _bind(second, begun.upper)
            assert begun.upper <= (await self.whole(place, second)).upper
            assert await self.found(place, second, begun) == await self.found(place, first, begun) != Counter()
            await place.produce(undecodable=True)
            known = await second.upstream_frontier()
            _bind(first, known)
            assert known <= await first.upstream_frontier()
            rest = Slice(8, begun.upper, known)
            wanted = await self.found(place, first, rest)
            await first.commit(known)
            assert await self.found(place, second, rest) == wanted != Counter()
            assert known <= await second.upstream_frontier()
            await second.commit(known)
            assert known <= await second.upstream_frontier()

        self.run(body())


def _bind(reader: SourceReader, known: Offsets) -> None:
    if isinstance(reader, TakesBounds):
        reader.bound(known)


def _said(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what a row says, as something to count."""
    return tuple(sorted((name, repr(value)) for name, value in row.items() if value is not None))


def _merged(before: Mapping[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Return the row of ``record``, whose columns that stay as they were are those of the row ``before``."""
    kept = record.pop(KEPT, None) or ()
    record.pop(ORDER, None)
    return record | {name: before[name] for name in kept}
