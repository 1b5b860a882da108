"""The contract of `Engine.lookup` and `Engine.derived`, as a test suite; fixtures as `engine_contract` says."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from msgspec.structs import replace

from strandline.algebra.nodes import Filter, First, Get, Order, Project
from strandline.algebra.scalar import Comparison, Condition, scalar
from strandline.algebra.scalar import columns as as_they_are
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.persist.shard.batch import Staged
from strandline.plane import Engine
from strandline.testing.contracts.engine_contract import SCHEMA, WAYS, Load, contents, errors, request, table, updates

SPREAD = Schema((Column("n", "int"), Column("m", "decimal(9,2)"), Column("d", "date"), Column("t", "timestamp")))
KEYS = Schema((Column("a", "string"), Column("b", "bigint")))
MEASURED = Schema((Column("k", "int"), Column("d", "double"), Column("t", "string")))
ORDERS = (Order("d"), Order("d", descending=True, nulls_first=False), Order("t", nulls_first=False), Order("t", True))


class LookupContract:
    """The tests for every Engine's look-ups."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run one test's coroutine."""
        asyncio.run(coroutine)

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("nulls", [False, True])
    def test_a_look_up_finds_the_rows_of_its_keys_as_they_are_now(
        self, engine: Engine, load: Load, way: str, nulls: bool
    ) -> None:
        """Damage: a join misses a row, or meets one that was withdrawn."""
        first = [(1, "a", 0, 1), (1, "b", 0, 2), (2, "a", 0, 1), (None, "c", 0, 1), (3, None, 0, 1)]
        second = [(1, "a", 4, -1), (1, "d", 4, 1), (2, "a", 5, 1), (4, "e", 9, 1)]

        async def body() -> None:
            bad = pa.concat_tables([table(second), errors([("bad", 4, 1)])], promote_options="default")
            batches = [
                await engine.stage(load(table(first), SCHEMA), request(way, upper=4)),
                await engine.stage(load(bad, SCHEMA), request(way, lower=4)),
            ]
            keys = load(_keys((1, "x"), (None, "a"), (3, "y")), KEYS)
            found = []
            for upper in (4, 9, 9):
                old = replace(contents(*batches), upper=upper, advance=20)
                rows = await engine.lookup(old, ["k"], [(keys, ["b"])], nulls=nulls)
                assert rows is not None
                found.append(updates(await engine.collect(rows)))
            none: dict[tuple[Any, ...], int] = {(None, "c", 20): 1} if nulls else {}
            assert found[0] == {(1, "a", 20): 1, (1, "b", 20): 2, (3, None, 20): 1, **none}
            assert found[1] == {(1, "b", 20): 2, (1, "d", 20): 1, (3, None, 20): 1, **none}
            assert found[2] == found[1]

        self.run(body())

    def test_keys_of_several_columns_and_places_are_met_whole(self, engine: Engine, load: Load) -> None:
        """Damage: half a key meets, or the rows of one term of a union are missed."""

        async def body() -> None:
            written = table([(1, "a", 0, 1), (1, "b", 0, 1), (2, "a", 0, 1), (2, "b", 0, 1)])
            old = contents(await engine.stage(load(written, SCHEMA), request("inline")))
            places = [(load(_keys((1, "b")), KEYS), ["a", "b"]), (load(table([(2, "a", 0, 1)]), SCHEMA), ["v", "k"])]
            rows = await engine.lookup(old, ["v", "k"], places, nulls=False)
            assert rows is not None
            assert updates(await engine.collect(rows)) == {(1, "b", 0): 1, (2, "a", 0): 1}

        self.run(body())

    def test_only_the_columns_that_are_read_are_handed_on(self, engine: Engine, load: Load) -> None:
        """Damage: a plan misses a column; or rows that differ in another one are taken for one row, or stay apart."""

        async def body() -> None:
            first = await engine.stage(
                load(table([(1, "a", 0, 1), (1, "b", 0, 2), (2, "a", 0, 1)]), SCHEMA), request("inline", upper=4)
            )
            second = await engine.stage(load(table([(1, "a", 4, -1)]), SCHEMA), request("inline", lower=4))
            keys = load(_keys((1, "x"), (2, "y")), KEYS)
            for upper, ones in ((4, 3), (9, 2)):
                old = replace(contents(first, second, shard="narrow"), upper=upper, advance=20)
                rows = await engine.lookup(old, ["k"], [(keys, ["b"])], nulls=True, read=["k"])
                assert rows is not None
                assert updates(await engine.collect(rows)) == {(1, 20): ones, (2, 20): 1}

        self.run(body())

    @pytest.mark.parametrize(
        ("column", "bounds", "wanted"),
        [
            ("n", (2, 4), {2, 3, 4}),
            ("m", (2, 4), {2, 3, 4}),
            ("d", (2, 4), {2, 3, 4}),
            ("t", (2, 2), {2}),
            ("n", (9, 12), set()),
            ("n", (2, None), None),
        ],
    )
    def test_a_span_is_found_with_both_its_ends(
        self, engine: Engine, load: Load, column: str, bounds: tuple[int | None, ...], wanted: set[int] | None
    ) -> None:
        """Damage: a row stays in a view though the bound has passed its value, or NULL is taken for a bound."""

        async def body() -> None:
            staged = await engine.stage(load(_spread(range(1, 6), 1), SPREAD), request("inline", schema=SPREAD))
            old = replace(contents(staged, schema=SPREAD), shard="spread", advance=20)
            moved = pa.concat_tables([_spread([bounds[0]], -1), _spread([bounds[1]], 1)])
            keys = [(load(moved, SPREAD), [column])]
            rows = await engine.lookup(old, [column], keys, nulls=False, span=True, read=["n", column])
            if wanted is None:
                assert rows is None
            elif rows is not None:
                found = (await engine.collect(rows)).to_pylist()
                assert wanted <= {row["n"] for row in found} <= set(range(1, 6))
                assert all(row[DIFF] == 1 and row[TIME] == 20 for row in found)
            only_gone = [(load(_spread([2], -1), SPREAD), [column])]
            assert await engine.lookup(old, [column], only_gone, nulls=False, span=True) is None, "it does not cancel"

        self.run(body())

    def test_without_columns_it_is_every_row_or_none(self, engine: Engine, load: Load) -> None:
        """Damage: rows are left out that all are wanted, or all are read for nothing."""

        async def body() -> None:
            written = table([(1, "a", 0, 1), (2, "b", 0, 2)])
            old = contents(await engine.stage(load(written, SCHEMA), request("inline")))
            nothing, something = load(_keys(), KEYS), load(_keys((1, "x")), KEYS)
            none = await engine.lookup(old, [], [(nothing, []), (nothing, [])], nulls=True)
            assert none is not None
            assert updates(await engine.collect(none)) == {}
            every = await engine.lookup(old, [], [(nothing, []), (something, [])], nulls=True)
            if every is not None:
                assert updates(await engine.collect(every)) == {(1, "a", 0): 1, (2, "b", 0): 2}

        self.run(body())

    @pytest.mark.parametrize("order", ORDERS, ids=str)
    def test_the_first_rows_of_a_key_are_found_and_those_that_may_come_up(
        self, engine: Engine, load: Load, order: Order
    ) -> None:
        """Damage: a row that comes up is missed: after a tie, a NULL, a NaN, or more rows than are left."""
        nan = math.nan
        first: list[tuple[Any, ...]] = [
            (1, d, t) for d, t in ((nan, "b"), (0.0, "prefixed b"), (-0.0, "prefixed a"), (-1.5, None), (None, ""))
        ]
        first += [(2, d, "é") for d in (3.0, 3.0, 2.0, None)] + [(None, 1.0, "a"), (3, 1.0, "z")]
        second = [((1, -1.5, None), -1), ((1, 7.0, "Z"), 1), ((1, -7.0, "z"), 1), ((2, 2.0, "é"), -1)]
        change = [((1, nan, "b"), -1), ((1, -7.0, "z"), -1), ((2, 9.0, "é"), 1), ((None, 1.0, "a"), -1)]

        async def body() -> None:
            batches = [
                await engine.stage(load(_measured(rows), MEASURED), request("inline", **bounds, schema=MEASURED))
                for rows, bounds in (([(row, 1) for row in first], {"upper": 4}), (second, {"lower": 4}))
            ]
            old = replace(contents(*batches, schema=MEASURED), shard=f"measured by {order}", advance=20)
            held = Counter({_plain(row): 0 for row in first})
            for row, diff in [*((row, 1) for row in first), *second]:
                held[_plain(row)] += diff
            keys, ahead = (load(_measured(change), MEASURED) for _ in range(2))
            for columns, nulls, rows in ((["k"], True, 1), (["k"], False, 2), ([], True, 3)):
                found = await engine.lookup(
                    old, columns, [(keys, columns)], nulls=nulls, first=(First((order,), rows), ahead)
                )
                if found is None:
                    continue
                got = Counter({_plain(key[:-1]): n for key, n in updates(await engine.collect(found)).items()})
                assert got == {row: held[row] for row in got}, "a row comes as often as it is there"
                for key in {row[0] for row, _ in change if nulls or row[0] is not None} if columns else {0}:
                    own = {row: n for row, n in held.items() if n and (not columns or row[0] == key)}
                    gone = sum(diff < 0 and (not columns or row[0] == key) for row, diff in change)
                    for row in own:
                        before = sum(n for each, n in own.items() if _rank(each, order) < _rank(row, order))
                        assert before >= rows + gone or row in got, (row, columns, rows)

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_a_peek_finds_just_the_rows_of_its_keys(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: an answer has a row of another key, lacks one, or has it less often than it is there."""
        nan = math.nan
        first = [
            ((1, nan, "a"), 1),
            ((1, 0.0, "a"), 2),
            ((2, -0.0, None), 1),
            ((None, None, "a"), 3),
            ((3, 2.5, ""), 1),
        ]
        second = [((1, 0.0, "a"), -1), ((2, -0.0, None), -1), ((2, 7.0, None), 1)]
        asked: list[tuple[tuple[str, ...], list[tuple[Any, ...]]]] = [
            (("k",), [(1,)]),
            (("k",), [(None,), (2,), (9,)]),
            (("d",), [(nan,), (0.0,), (None,)]),
            (("t", "k"), [("a", None), (None, 2), ("a", 2), ("", 3)]),
            (("k",), []),
        ]

        async def body() -> None:
            batches = [
                await engine.stage(load(_measured(rows), MEASURED), request(way, **bounds, schema=MEASURED))
                for rows, bounds in ((first, {"upper": 4}), (second, {"lower": 4}))
            ]
            for changes, upper in ((first, 4), ([*first, *second], 9)):
                old = replace(
                    contents(*batches, schema=MEASURED), shard=f"peeked {way}", upper=upper, advance=upper - 1
                )
                held: Counter[tuple[Any, ...]] = Counter()
                for row, diff in changes:
                    held[_plain(row)] += diff
                for columns, keys in asked:
                    places = [MEASURED.names.index(name) for name in columns]
                    wanted = {_plain_values(key) for key in keys}
                    right = Counter(
                        {row: n for row, n in held.items() if n and tuple(row[at] for at in places) in wanted}
                    )
                    found = await engine.peek(old, columns, _peeked(columns, keys))
                    assert found is not None
                    assert Counter(map(_plain, zip(*found.to_pydict().values(), strict=True))) == right, (columns, keys)
                    few = await engine.peek(old, columns, _peeked(columns, keys), 1)
                    assert few is not None
                    assert few.num_rows == min(1, right.total())
                    assert set(map(_plain, zip(*few.to_pydict().values(), strict=True))) <= right.keys()

        self.run(body())

    def test_rows_are_narrowed_to_those_for_which_all_conditions_may_be_true(self, engine: Engine, load: Load) -> None:
        """Damage: a row goes that the predicate lets through: by its NULLs, its type, or the order of its letters."""
        rows = [(n, s, 0, 1) for n, s in ((1, "green"), (2, "evergreens"), (3, "Z"), (4, "é"), (None, "a"), (5, None))]
        cases: list[tuple[tuple[Condition, ...], set[Any]]] = [
            ((Condition("k", Comparison.AT_LEAST, (2,)), Condition("k", Comparison.LESS, (4,))), {2, 3}),
            ((Condition("v", Comparison.HOLDS, ("green",)),), {1, 2}),
            ((Condition("v", Comparison.STARTS, ("green",)), Condition("v", Comparison.ENDS, ("n",))), {1}),
            ((Condition("v", Comparison.MORE, ("a",)),), {1, 2, 4}),
            ((Condition("v", Comparison.IN, ("Z", "x")),), {3}),
            ((Condition("k", Comparison.IN, (1 << 40, 5)),), {5}),
            ((Condition("k", Comparison.IN, (1 << 70,)),), set()),
            ((Condition("v", Comparison.IN, (1,)), Condition("k", Comparison.IN, ("1",))), {1, 2, 3, 4, 5, None}),
            ((), {1, 2, 3, 4, 5, None}),
        ]

        async def body() -> None:
            for conditions, through in cases:
                kept = await engine.collect(await engine.narrowed(load(table(rows), SCHEMA), conditions))
                assert through <= set(kept["k"].to_pylist()), conditions
                assert kept.column_names == table(rows).column_names

        self.run(body())

    def test_what_is_made_of_a_draft_is_what_is_made_of_it_once_it_is_staged(self, engine: Engine, load: Load) -> None:
        """Damage: a view above an aggregate holds rows of a batch that was never written."""
        below = Filter(Get("f", (("k", "k"), ("v", "v"))), scalar("`k` > 1"))
        above = Project(Get("g", (("key", "k"), ("name", "v"))), as_they_are(("name", "key")))
        written = [(1, "a", 1, 1), (2, "b", 3, 1), (2, "b", 3, 1), (3, "c", 4, -1)]

        async def body() -> None:
            batch = await engine.stage(load(table(written), SCHEMA), request("inline"))
            drafted = await engine.evaluate(below, {"f": await engine.read(contents(batch))})
            derived = await engine.derived(above, {"g": (SCHEMA, drafted)})
            assert derived is not None
            schema = Schema((Column("name", "string"), Column("key", "int")))
            outcomes = await engine.stage_many(
                [(drafted, request("inline")), (derived, request("inline", schema=schema))]
            )
            first, second = (outcome for outcome in outcomes if isinstance(outcome, Staged))
            read = await engine.collect(await engine.evaluate(above, {"g": await engine.read(contents(first))}))
            found = await engine.collect(await engine.read(contents(second, schema=schema)))
            assert updates(found) == updates(read) == {("b", 2, 3): 2, ("c", 3, 4): -1}

        self.run(body())


_KINDS: Final = {"k": pa.int32(), "d": pa.float64(), "t": pa.string()}


def _peeked(columns: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> pa.Table:
    return pa.table({name: pa.array([key[n] for key in keys], _KINDS[name]) for n, name in enumerate(columns)})


def _plain_values(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in key)


def _measured(rows: Sequence[tuple[tuple[Any, ...], int]]) -> pa.Table:
    columns = {name: pa.array([row[n] for row, _ in rows], kind) for n, (name, kind) in enumerate(_KINDS.items())}
    diffs = pa.array([diff for _, diff in rows], pa.int64())
    return pa.table(
        columns | {TIME: pa.array([5 if -1 in diffs.to_pylist() else 1] * len(rows), pa.int64()), DIFF: diffs}
    )


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row that equals itself: NaN as a text, and one zero."""
    k, d, t = row
    return k, d if d is None else "NaN" if math.isnan(d) else d + 0.0, t


def _rank(row: tuple[Any, ...], order: Order) -> tuple[Any, ...]:
    """Return what compares as rows do in an order."""
    value = row[MEASURED.names.index(order.column)]
    if value is None:
        return (0 if order.nulls_first else 2, ())
    if order.column == "t":
        letters = [*value.encode(), -1]
        return 1, tuple(-each for each in letters) if order.descending else tuple(letters)
    number = math.inf if value == "NaN" else value
    return 1, (-number if order.descending else number,)


def _keys(*pairs: tuple[int | None, str | None]) -> pa.Table:
    numbers, texts = [number for number, _ in pairs], [text for _, text in pairs]
    ones = pa.array([1] * len(pairs), pa.int64())
    columns = {"a": pa.array(texts, pa.string()), "b": pa.array(numbers, pa.int64())}
    return pa.table(columns | {TIME: ones, DIFF: ones})


def _spread(values: Iterable[int | None], diff: int) -> pa.Table:
    """Return updates of a row for each value, which has it in every type."""
    rows = list(values)
    days = [None if value is None else date(2026, 1, value) for value in rows]
    return pa.table(
        {
            "n": pa.array(rows, pa.int32()),
            "m": pa.array([None if value is None else Decimal(value) for value in rows], pa.decimal128(9, 2)),
            "d": pa.array(days, pa.date32()),
            "t": pa.array(days, pa.date32()).cast(pa.timestamp("us", "UTC")),
            TIME: pa.array([0] * len(rows), pa.int64()),
            DIFF: pa.array([diff] * len(rows), pa.int64()),
        }
    )
