"""The contract of `Engine`, as a test suite for Spark's implementation and for the simulator's double.

Subclass it in a test module and give it two fixtures: ``engine``, and ``load``, which makes rows of that engine from a
small Arrow table of updates (the columns of `SCHEMA`, perhaps ``__error``, and ``__time``, ``__diff``).

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self, tmp_path): ...
        @pytest.fixture
        def load(self, engine): return engine.from_arrow
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pytest
from msgspec.structs import replace
from sqlglot import exp

from strandline.algebra.judged import have_values
from strandline.algebra.messages import TAKES_BACK
from strandline.algebra.nodes import Failing, Filter, Get, Project
from strandline.algebra.scalar import Scalar, scalar
from strandline.algebra.scalar import columns as as_they_are
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import CorruptionError, InvalidUsage, StrandlineError
from strandline.frontier import TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, Rows, StageRequest
from strandline.persist.shard.batch import NOTHING, BlobPart, InlinePart, Staged, as_batch, retimed
from strandline.plane import Engine, Errors

T = TypeVar("T")
Load: TypeAlias = Callable[[pa.Table, Schema], Rows]
Update: TypeAlias = tuple[int | None, str | None, int, int]

SCHEMA: Final = Schema((Column("k", "int"), Column("v", "string")))
LOWER, UPPER = 0, 10

#: The ways to write a batch; none may affect what a read returns.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "inline": {"small": True, "inline_bytes_max": 16 << 10},
    "small": {"small": True},
    "bulk": {},
}
_prefixes = itertools.count()


def table(updates: Iterable[Update]) -> pa.Table:
    """Return ok updates ``(k, v, time, diff)`` as the table that ``load`` takes."""
    k, v, time, diff = zip(*updates, strict=True) if (updates := list(updates)) else ((), (), (), ())
    return pa.table({"k": pa.array(k, pa.int32()), "v": pa.array(v, pa.string()), TIME: _long(time), DIFF: _long(diff)})


def errors(updates: Iterable[tuple[str, int, int]]) -> pa.Table:
    """Return err updates ``(error, time, diff)``."""
    texts, time, diff = zip(*updates, strict=True)
    none = [None] * len(texts)
    columns = {"k": pa.array(none, pa.int32()), "v": pa.array(none, pa.string()), ERROR: pa.array(texts, pa.string())}
    return pa.table(columns | {TIME: _long(time), DIFF: _long(diff)})


def request(way: str, *, lower: int = LOWER, upper: int = UPPER, schema: Schema = SCHEMA) -> StageRequest:
    """Return a request to stage that way, under a fresh prefix."""
    return StageRequest("shard-1", schema, lower, upper, f"shard-1/{next(_prefixes)}/", **WAYS[way])


def contents(*staged: Staged, schema: Schema = SCHEMA, shard: str = "shard-1") -> Contents:
    """Return all updates of the batches, at their own times.  Contents of one shard and window are the same."""
    upper = max((s.upper.at or 0 for s in staged), default=UPPER)
    return Contents(shard, schema, tuple(map(as_batch, staged)), LOWER, upper, 0)


def updates(found: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return collected updates as row and time → Σ diff."""
    total: Counter[tuple[Any, ...]] = Counter()
    for row in found.to_pylist():
        diff = row.pop(DIFF)
        total[tuple(row.values())] += diff
    return Counter({row: diff for row, diff in total.items() if diff})


def _long(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.int64())


class EngineContract:
    """The tests for every Engine."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine.  A double that lives outside asyncio overrides this."""
        return asyncio.run(coroutine)

    @pytest.mark.parametrize("way", WAYS)
    def test_what_was_staged_is_what_is_read(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a shard's contents depend on how they were written."""
        written = [(1, "a", 3, 1), (2, None, 3, 2), (None, "c", 9, -1)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            assert (staged.lower, staged.upper) == (Frontier(LOWER), Frontier(UPPER))
            assert (staged.rows, staged.diffs, staged.plain) == (3, 2, False)
            found = await engine.collect(await engine.read(contents(staged)))
            assert found.column_names == ["k", "v", TIME, DIFF]
            assert updates(found) == {(1, "a", 3): 1, (2, None, 3): 2, (None, "c", 9): -1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_equal_rows_at_one_time_are_one_update(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: batches grow with churn, and cancelled rows are stored for ever."""
        written = [(1, "a", 3, 1), (1, "a", 3, 1), (1, "a", 4, 1), (2, "b", 3, 1), (2, "b", 3, -1)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            assert (staged.rows, staged.diffs) == (2, 3)
            found = await engine.collect(await engine.read(contents(staged)))
            assert sorted(found[DIFF].to_pylist()) == [1, 2]

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("written", [[], [(1, "a", 3, 1), (1, "a", 3, -1)]], ids=["none", "cancelled"])
    def test_an_empty_result_stages_no_parts(self, engine: Engine, load: Load, way: str, written: list[Update]) -> None:
        """Damage: every idle tick leaves objects behind."""

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            assert (staged.parts, staged.rows, staged.diffs, staged.digest) == ((), 0, 0, NOTHING)
            found = await engine.collect(await engine.read(contents(staged)))
            assert found.num_rows == 0
            assert found.column_names == ["k", "v", TIME, DIFF]

        self.run(body())

    def test_the_digest_does_not_depend_on_the_way(self, engine: Engine, load: Load) -> None:
        """Damage: a compaction that rewrites an inline part as an object looks like a corruption."""
        written = [(i, f"v{i % 7}" if i % 5 else None, i % 10, 1 + i % 3) for i in range(100)]

        async def body() -> None:
            digests = {(await engine.stage(load(table(written), SCHEMA), request(way))).digest for way in WAYS}
            assert len(digests) == 1

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_the_digest_of_a_union_is_the_sum(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: contents cannot be checked without reading all of them again."""
        first: list[Update] = [(1, "a", 1, 1), (2, "b", 2, 2)]
        second: list[Update] = [(1, "a", 7, -1), (None, "b", 8, 1)]

        async def body() -> None:
            apart = [await engine.stage(load(table(u), SCHEMA), request(way)) for u in (first, second)]
            whole = await engine.stage(load(table(first + second), SCHEMA), request(way))
            assert apart[0].digest + apart[1].digest == whole.digest
            # (1, a) was withdrawn again, so time is seen not to matter:
            left = await engine.stage(load(table([(2, "b", 5, 2), (None, "b", 5, 1)]), SCHEMA), request(way))
            assert left.digest == whole.digest

        self.run(body())

    def test_rows_that_differ_in_where_the_null_is_have_different_digests(self, engine: Engine, load: Load) -> None:
        """Damage: a value that moves into the next column passes every check."""
        schema = Schema((Column("a", "string"), Column("b", "string")))
        sides: list[dict[str, list[str | None]]] = [
            {"a": ["x"], "b": [None]},
            {"a": [None], "b": ["x"]},
            {"a": ["x"], "b": ["x"]},
            {"a": [None], "b": [None]},
        ]

        async def body() -> None:
            digests = set()
            for side in sides:
                columns = {name: pa.array(values, pa.string()) for name, values in side.items()}
                rows = load(pa.table(columns | {TIME: _long([1]), DIFF: _long([1])}), schema)
                digests.add((await engine.stage(rows, request("inline", schema=schema))).digest)
            assert len(digests) == len(sides)

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_only_single_insertions_are_plain(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a scan skips consolidation and shows a withdrawn row, or consolidates without need."""

        async def body() -> None:
            cases = {True: [(1, "a", 1, 1), (2, "a", 1, 1)], False: [(1, "a", 1, 1), (2, "a", 2, -1)]}
            for plain, written in cases.items():
                assert (await engine.stage(load(table(written), SCHEMA), request(way))).plain is plain

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("time", [LOWER + 1, UPPER], ids=["before", "after"])
    def test_a_time_outside_the_batch_is_refused(self, engine: Engine, load: Load, way: str, time: int) -> None:
        """Damage: an update appears at a time that was already read."""

        async def body() -> None:
            rows = load(table([(1, "a", 5, 1), (1, "a", time, 1)]), SCHEMA)
            with pytest.raises(InvalidUsage, match=str(time)):
                await engine.stage(rows, request(way, lower=LOWER + 2))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_window_holds_its_times_and_advances_the_early_ones(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a step reads an update twice or never, or a read after compaction differs from one before."""
        written = [(t, "a", t, 1) for t in range(10)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            window = replace(contents(staged), lower=2, upper=6, advance=4)
            found = await engine.collect(await engine.read(window))
            assert updates(found) == {(2, "a", 4): 1, (3, "a", 4): 1, (4, "a", 4): 1, (5, "a", 5): 1}

        self.run(body())

    def test_batches_written_in_different_ways_are_read_as_one(self, engine: Engine, load: Load) -> None:
        """Damage: recent small batches vanish behind old large ones."""

        async def body() -> None:
            staged = []
            for number, way in enumerate(WAYS):
                bounds = request(way, lower=number, upper=number + 1)
                staged.append(await engine.stage(load(table([(number, way, number, 1)]), SCHEMA), bounds))
            found = await engine.collect(await engine.read(contents(*staged)))
            assert updates(found) == {(n, way, n): 1 for n, way in enumerate(WAYS)}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_each_half_is_read_alone(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: an error is read as a row of NULLs, or hides."""
        mixed = pa.concat_tables([table([(1, "a", 1, 1)]), errors([("bad line 7", 2, 1)])], promote_options="default")

        async def body() -> None:
            staged = await engine.stage(load(mixed, SCHEMA), request(way))
            assert staged.rows == 2
            both = contents(staged)
            right = await engine.collect(await engine.read(both))
            assert updates(right) == {(1, "a", 1): 1}
            wrong = await engine.collect(await engine.read(replace(both, half=Half.ERR)))
            assert wrong.column_names == [ERROR, TIME, DIFF]
            assert updates(wrong) == {("bad line 7", 2): 1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_union_negates_and_advances(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a correction inserts what it should withdraw."""

        async def body() -> None:
            staged = await engine.stage(load(table([(1, "a", 1, 1), (2, "b", 8, 1)]), SCHEMA), request(way))
            stored = await engine.read(contents(staged))
            desired = load(table([(1, "a", 0, 1), (3, "c", 0, 1)]), SCHEMA)
            both = await engine.union(SCHEMA, [desired, stored], advance=5, negate=[False, True])
            assert updates(await engine.collect(both)) == {(3, "c", 5): 1, (2, "b", 8): -1}
            none = await engine.union(SCHEMA, [], advance=5, negate=[])
            assert (await engine.collect(none)).num_rows == 0

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_multiset_holds_each_row_as_often_as_it_counts(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a query counts a duplicate row once, or sees a withdrawn row."""
        written = [(1, "a", 1, 2), (None, None, 1, 1), (2, "b", 1, 1), (2, "b", 3, -1)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            rows = await engine.multiset(await engine.read(contents(staged)))
            found = await engine.collect(rows)
            assert found.column_names == ["k", "v"]
            assert Counter(map(tuple, (r.values() for r in found.to_pylist()))) == {(1, "a"): 2, (None, None): 1}
            plain = await engine.stage(load(table([(1, "a", 1, 1), (1, "a", 2, 1)]), SCHEMA), request(way))
            assert plain.plain
            again = await engine.collect(await engine.multiset(await engine.read(contents(plain))))
            assert again.to_pylist() == [{"k": 1, "v": "a"}] * 2

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_negative_count_is_an_error_that_names_the_row(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a row that was withdrawn too often makes other rows vanish, silently."""

        async def body() -> None:
            staged = await engine.stage(load(table([(1, "fine", 1, 1), (2, "owed", 1, -1)]), SCHEMA), request(way))
            with pytest.raises(StrandlineError, match="owed"):
                await engine.collect(await engine.multiset(await engine.read(contents(staged))))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_what_is_restricted_keeps_every_update_of_the_wanted_rows(
        self, engine: Engine, load: Load, way: str
    ) -> None:
        """Damage: an existing row counts as absent, and a DELETE is refused."""
        written = [(1, "a", 1, 2), (None, "b", 2, 1), (2, None, 3, 1), (1, "a", 4, -1), (3, "c", 5, 1)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            wanted = load(table([(1, "a", 0, -1), (None, "b", 0, -1), (2, None, 0, -1), (9, "z", 0, -1)]), SCHEMA)
            kept = await engine.restrict(await engine.read(contents(staged)), wanted, SCHEMA)
            found = updates(await engine.collect(kept))
            extra = set(found) - {(1, "a", 1), (None, "b", 2), (2, None, 3), (1, "a", 4)}
            assert extra <= {(3, "c", 5)}, "other rows may be kept if that costs nothing"
            assert (found[1, "a", 1], found[1, "a", 4], found[None, "b", 2], found[2, None, 3]) == (2, -1, 1, 1)
            none = load(table([]), SCHEMA)
            left = await engine.differences(
                await engine.union(SCHEMA, [kept, none], advance=9, negate=[False] * 2), SCHEMA
            )
            assert (left.missing, left.extra) == (0, 3 + len(extra))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_differences_count_what_does_not_cancel_out(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a wrong view is reported as right, or a DELETE of an absent row succeeds."""
        written = [(1, "a", 1, 2), (1, "a", 4, -2), (2, None, 3, -1), (None, "c", 5, 3)]

        async def body() -> None:
            staged = await engine.stage(load(table(written), SCHEMA), request(way))
            left = await engine.differences(await engine.read(contents(staged)), SCHEMA)
            assert (left.missing, left.extra) == (1, 3)
            assert left.sample.to_pylist() == [{"k": 2, "v": None, DIFF: -1}, {"k": None, "v": "c", DIFF: 3}]

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_merge_advances_adds_up_and_keeps_both_halves(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: compaction changes what is read; or drops the errors; or keeps what has cancelled out."""
        first = pa.concat_tables(
            [table([(1, "a", 1, 1), (2, "b", 2, 1)]), errors([("bad", 2, 1)])], promote_options="default"
        )
        second = table([(1, "a", 5, 1), (2, "b", 6, -1), (None, "c", 9, -2)])

        async def body() -> None:
            apart = [
                await engine.stage(load(first, SCHEMA), request(way, upper=3)),
                await engine.stage(load(second, SCHEMA), request(way, lower=3)),
            ]
            inputs = replace(contents(*apart), upper=TIME_MAX, advance=6, half=Half.BOTH)
            merged = await engine.merge(inputs, request(way))
            assert (merged.lower, merged.upper, merged.since) == (Frontier(LOWER), Frontier(UPPER), Frontier(6))
            assert (merged.rows, merged.diffs, merged.errors, merged.plain) == (3, 1, 1, False)
            assert merged.digest == apart[0].digest + apart[1].digest
            assert all(isinstance(part, InlinePart) is (way == "inline") for part in merged.parts)
            found = await engine.collect(await engine.read(replace(contents(merged), upper=TIME_MAX)))
            assert updates(found) == {(1, "a", 6): 2, (None, "c", 9): -2}
            wrong = await engine.collect(await engine.read(replace(contents(merged), half=Half.ERR)))
            assert updates(wrong) == {("bad", 6): 1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_batches_and_merges_are_sorted_as_asked_and_say_so(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a reader that searches for a key finds some of its rows."""
        first = table([(5 - n, f"v{n % 3}" if n else None, 2, 1) for n in range(6)])
        second = table([(9, "v1", 4, 1), (0, None, 5, 1), (8, "v0", 6, 1)])

        def asked() -> StageRequest:
            return replace(request(way), sort=("v", "k"))

        async def body() -> None:
            apart = [await engine.stage(load(each, SCHEMA), asked()) for each in (first, second)]
            for staged in (*apart, await engine.merge(contents(*apart), asked())):
                assert staged.sort == ("v", "k")
                for part in staged.parts:
                    one = contents(replace(staged, parts=(part,), rows=part.rows))
                    found = (await engine.collect(await engine.read(one))).to_pylist()
                    order = [(row["v"] or "", row["k"]) for row in found]
                    assert order == sorted(order)

        self.run(body())

    def test_a_merge_may_leave_nothing(self, engine: Engine, load: Load) -> None:
        """Damage: a collection that is empty again keeps empty parts."""

        async def body() -> None:
            apart = [
                await engine.stage(load(table([(1, "a", at, diff)]), SCHEMA), request("bulk", lower=at, upper=at + 1))
                for at, diff in ((1, 1), (2, -1))
            ]
            merged = await engine.merge(replace(contents(*apart), upper=TIME_MAX, advance=20), request("bulk"))
            assert (merged.parts, merged.rows, merged.digest) == ((), 0, NOTHING)

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_verifying_reads_all_of_it(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a check of the store reports success without reading anything."""
        mixed = pa.concat_tables([table([(1, "a", 1, 3)]), errors([("bad", 2, 1)])], promote_options="default")

        async def body() -> None:
            staged = await engine.stage(load(mixed, SCHEMA), request(way))
            assert await engine.verify(contents(staged)) == 4
            await engine.discard(staged)
            if any(isinstance(part, BlobPart) for part in staged.parts):
                with pytest.raises(CorruptionError, match="missing"):
                    await engine.verify(contents(staged))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_what_is_trimmed_shows_only_what_lies_within(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: an append that was trimmed brings in times outside its bounds."""
        written = [(1, "a", 1, 1), (2, "b", 3, 2), (3, "c", 3, -1), (4, "d", 7, 1)]

        async def body() -> None:
            whole = await engine.stage(load(table(written), SCHEMA), request(way))
            alone = await engine.stage(load(table(written[1:3]), SCHEMA), request(way))
            part = await engine.trim(whole, SCHEMA, Frontier(2), Frontier(5))
            assert (part.lower, part.upper) == (Frontier(2), Frontier(5))
            assert (part.rows, part.diffs, part.digest, part.plain) == (2, 1, alone.digest, False)
            shown = {(2, "b", 3): 2, (3, "c", 3): -1}
            beside = await engine.stage(load(table([(9, "z", 6, 1)]), SCHEMA), request(way))
            both = replace(contents(part, beside), lower=0, upper=UPPER)
            assert updates(await engine.collect(await engine.read(both))) == shown | {(9, "z", 6): 1}
            counts = await engine.times(both)
            assert list(counts) == [3, 6]
            assert all(counts.values())
            merged = await engine.merge(replace(both, advance=4), request(way))
            again = await engine.collect(await engine.read(contents(merged)))
            assert updates(again) == {(2, "b", 4): 2, (3, "c", 4): -1, (9, "z", 6): 1}
            nothing = await engine.trim(whole, SCHEMA, Frontier(4), Frontier(6))
            assert (nothing.parts, nothing.rows, nothing.digest) == ((), 0, NOTHING)
            with pytest.raises(InvalidUsage):
                await engine.trim(part, SCHEMA, Frontier(1), Frontier(5))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_what_was_given_a_later_time_is_read_at_it(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a transaction that lost a race commits its rows at a past time."""

        async def body() -> None:
            staged = await engine.stage(load(table([(1, "a", 1, 1), (2, "b", 4, 1)]), SCHEMA), request(way, upper=5))
            moved = retimed(staged, Frontier(3), Frontier(8))
            for window, shown in (
                ((0, 8), {(1, "a", 3): 1, (2, "b", 4): 1}),
                ((0, 3), {}),
                ((3, 4), {(1, "a", 3): 1}),
                ((4, 8), {(2, "b", 4): 1}),
            ):
                wanted = replace(contents(moved), lower=window[0], upper=window[1])
                assert updates(await engine.collect(await engine.read(wanted))) == shown
            later = replace(contents(moved), upper=8, advance=6)
            assert updates(await engine.collect(await engine.read(later))) == {(1, "a", 6): 1, (2, "b", 6): 1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_old_parts_are_read_under_the_newest_schema(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a column that was added, widened or dropped makes history unreadable."""
        newest = Schema((Column("new", "double"), Column("k", "bigint")))

        async def body() -> None:
            staged = await engine.stage(load(table([(1, "a", 1, 1), (2, "b", 4, 1)]), SCHEMA), request(way))
            old = contents(staged, schema=newest)
            wanted = {(None, 1, 1): 1, (None, 2, 4): 1}
            assert updates(await engine.collect(await engine.read(old))) == wanted
            merged = await engine.merge(old, request(way, schema=newest))
            assert updates(await engine.collect(await engine.read(contents(merged, schema=newest)))) == wanted

        self.run(body())

    def test_a_discarded_batch_is_gone_and_may_be_discarded_again(self, engine: Engine, load: Load) -> None:
        """Damage: lost races fill the store, or discarding a batch twice raises an error without a remedy."""

        async def body() -> None:
            staged = await engine.stage(load(table([(1, "a", 1, 1)]), SCHEMA), request("bulk"))
            assert any(isinstance(part, BlobPart) for part in staged.parts)
            for _ in range(2):
                await engine.discard(staged)
            with pytest.raises(CorruptionError, match="missing"):
                await engine.collect(await engine.read(contents(staged)))

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_plan_acts_on_updates(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a view's step loses the time or the diff of its input."""
        columns = (("k", "k"), ("name", "v"))
        plan = Project(Filter(Get("f", columns), scalar("`k` > 1")), as_they_are(("name", "k")))

        async def body() -> None:
            staged = await engine.stage(
                load(table([(1, "a", 1, 1), (2, "b", 3, 1), (3, "c", 4, -1)]), SCHEMA), request(way)
            )
            found = await engine.collect(await engine.evaluate(plan, {"f": await engine.read(contents(staged))}))
            assert updates(found.select(["name", "k", TIME, DIFF])) == {("b", 2, 3): 1, ("c", 3, 4): -1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_row_that_fails_is_an_error_for_as_long_as_it_is_there(
        self, engine: Engine, load: Load, way: str
    ) -> None:
        """Damage: one row on which an expression fails stops a view for ever, or its error outlives the row."""
        rows = Get("f", (("k", "k"), ("name", "v")))
        tried = (scalar("10 / `k`"), scalar("`name`"))
        history = [(1, "a", 1, 1), (0, "b", 2, 2), (0, "c", 3, 1), (0, "b", 4, -2), (None, "d", 5, 1)]

        async def body() -> None:
            staged = await engine.stage(load(table(history), SCHEMA), request(way))
            read = {"f": await engine.read(contents(staged))}
            passing = await engine.collect(await engine.evaluate(Filter(rows, have_values(tried)), read))
            assert updates(passing.select(["name", TIME, DIFF])) == {("a", 1): 1, ("d", 5): 1}
            without = Filter(rows, Scalar(exp.Not(this=have_values(tried).tree)))
            errors_of = Failing(without, tried, ("it's 10 / k", ""), (("k", "k"), ("it's", "name")), "it's v")
            failing = await engine.collect(await engine.evaluate(errors_of, read))
            assert failing.column_names == [ERROR, TIME, DIFF]
            found = {(e, t): d for (e, t), d in updates(failing).items()}
            assert sorted((time, diff) for (_, time), diff in found.items()) == [(2, 2), (3, 1), (4, -2)]
            texts = {json.loads(error)["row"]["it's"]: json.loads(error) for error, _ in found}
            assert texts["b"] == {"collection": "it's v", "expression": "it's 10 / k", "row": {"k": 0, "it's": "b"}}
            assert len(texts) == 2

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_no_expression_is_evaluated_on_a_row_that_was_withdrawn(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: a view fails for ever on a row that was withdrawn."""
        plan = Filter(Get("f", (("k", "k"),)), scalar("10 / `k` > 1"))

        async def body() -> None:
            history = [(0, "bad", 1, 1), (5, "good", 1, 1), (0, "bad", 4, -1)]
            staged = await engine.stage(load(table(history), SCHEMA), request(way))
            net = await engine.read(replace(contents(staged), advance=6, net=True))
            assert updates(await engine.collect(await engine.evaluate(plan, {"f": net}))) == {(5, 6): 1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_errors_are_counted_by_collection_and_by_time(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: `status` shows no errors, or a view counts the errors of others as its own."""
        mine, other, foreign = '{"collection":"v","row":1}', '{"collection":"w","row":1}', '{"file":"a.csv"}'
        history = [(mine, 1, 2), (other, 1, 1), (foreign, 2, 1), (mine, 3, -1), (other, 3, -1)]

        async def body() -> None:
            staged = await engine.stage(load(errors(history), SCHEMA), request(way))
            rows = await engine.read(replace(contents(staged), half=Half.ERR))
            assert await engine.errors(rows) == Errors(2, (mine, foreign))
            assert await engine.errors(rows, of="v") == Errors(1, (mine,))
            assert await engine.errors(rows, of="w") == Errors(0)
            assert list((await engine.weights(rows)).items()) == [(1, 3), (2, 1), (3, -2)]

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_an_error_cancels_the_error_of_the_same_record_taken_back(
        self, engine: Engine, load: Load, way: str
    ) -> None:
        """Damage: a bad record that was withdrawn stays an error for ever; or another record's error leaves."""

        def error(file: str, reason: str, raw: str | None) -> str:
            return json.dumps({"file": file, "line": 1, "reason": reason, "raw": raw})

        a, b, c, plain = error("a", "short", "x"), error("b", "short", "x"), error("c", "long", "x"), "'plain' [text]"
        back, none = error("z", f"{TAKES_BACK}short", "x"), error("n", "short", None)
        history = [(b, 1, 2), (c, 1, 1), (plain, 1, 1), (none, 1, 1)]
        updated = [(a, 7, 1), (back, 7, 2), (f"{TAKES_BACK}{plain}", 7, 1), (f"{TAKES_BACK}never", 7, 1)]

        async def body() -> None:
            staged = await engine.stage(load(errors(history), SCHEMA), request(way))
            held = await engine.read(replace(contents(staged), half=Half.ERR))
            mixed = pa.concat_tables([table([(1, "a", 7, 1)]), errors(updated)], promote_options="default")
            left = await engine.stage(await engine.cancel(load(mixed, SCHEMA), held, time=7), request(way))
            read = await engine.collect(await engine.read(replace(contents(left), half=Half.ERR)))
            assert updates(read) == {(b, 7): -1, (plain, 7): -1, (f"{TAKES_BACK}never", 7): 1}
            assert updates(await engine.collect(await engine.read(contents(left)))) == {(1, "a", 7): 1}

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_union_takes_rows_and_errors(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: errors cannot be stored beside the rows of a view, or are read as rows of NULLs."""

        async def body() -> None:
            good = await engine.stage(load(table([(1, "a", 1, 1)]), SCHEMA), request(way))
            bad = await engine.stage(load(errors([("bad", 2, 1)]), SCHEMA), request(way))
            frames = [await engine.read(each) for each in (contents(good), replace(contents(bad), half=Half.ERR))]
            both = await engine.union(SCHEMA, frames, advance=0, negate=[False, False])
            staged = await engine.stage(both, request(way))
            assert (staged.rows, staged.errors) == (2, 1)
            assert staged.digest == good.digest + bad.digest
            read = updates(await engine.collect(await engine.read(replace(contents(staged), half=Half.BOTH))))
            assert read == {(1, "a", None, 1): 1, (None, None, "bad", 2): 1}

        self.run(body())
