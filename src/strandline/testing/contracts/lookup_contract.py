"""The contract of `Engine.lookup`, as a test suite; fixtures as `engine_contract` says.

Source: design page "compute" (arrangements: a look-up gives what a scan would, or leaves it to one).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from strandline.algebra.conditions import Comparison, Condition
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.persist.handles.plane import Engine
from strandline.testing.contracts.engine_contract import SCHEMA, WAYS, Load, contents, errors, request, table, updates

KEYS = Schema((Column("a", "string"), Column("b", "bigint")))


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


def _keys(*pairs: tuple[int | None, str | None]) -> pa.Table:
    numbers, texts = [number for number, _ in pairs], [text for _, text in pairs]
    ones = pa.array([1] * len(pairs), pa.int64())
    columns = {"a": pa.array(texts, pa.string()), "b": pa.array(numbers, pa.int64())}
    return pa.table(columns | {TIME: ones, DIFF: ones})
