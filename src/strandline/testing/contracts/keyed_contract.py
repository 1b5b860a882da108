"""The contract of `Engine.keyed`, as a test suite; fixtures as `engine_contract` says.

Records come as `Engine.arrivals` takes them.  The truth is `sources.envelopes.changed`.
`history` makes random records from a seed.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pytest
from msgspec.structs import replace

from strandline.algebra.messages import GONE, KEPT, NOTHING_KEPT, ORDER, key_of
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import InvalidUsage
from strandline.persist.handles.contents import Half, Rows
from strandline.plane import Engine
from strandline.sources.envelopes import changed, normal
from strandline.testing.contracts.engine_contract import WAYS, Load, contents, request

Row: TypeAlias = dict[str, Any]
State: TypeAlias = Counter[tuple[Any, ...]]

TYPES: Final[Mapping[str, pa.DataType]] = {
    "k": pa.int32(),
    "p": pa.string(),
    "d": pa.float64(),
    "m": pa.decimal128(9, 2),
    "v": pa.string(),
    "w": pa.int64(),
}
SCHEMA: Final = Schema(tuple(map(Column, TYPES, ("int", "string", "double", "decimal(9,2)", "string", "bigint"))))
_OURS: Final[Mapping[str, pa.DataType]] = {
    ERROR: pa.string(),
    ORDER: pa.int64(),
    GONE: pa.bool_(),
    KEPT: pa.list_(pa.string()),
    TIME: pa.int64(),
    DIFF: pa.int64(),
}
KEYS: Final[Mapping[str, Sequence[Row]]] = {
    "k": [{"k": k} for k in (1, 2, 3)],
    "k,p": [{"k": k, "p": p} for k in (1, None) for p in ("a", "", None)],
    "d": [{"d": d} for d in (0.0, 1.5, math.nan, None)],
    "m,p": [{"m": m, "p": p} for m in (Decimal("1.50"), Decimal("-0.10")) for p in ('{"a', None)],
}
"""Keys, by the names of their columns: also those that are equal and look different (−0.0, in `history`)."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which records a history has besides rows and deletions."""

    errors: bool
    kept: bool


def history(seed: int, key: str, kinds: Kinds, *, times: int = 4) -> list[Row]:
    """Return random records of a few keys: at each time none, one or several of a key, some of them twice."""
    chance = random.Random(seed)
    made: list[Row] = []
    for order in range(chance.randint(4, 24)):
        own = dict(chance.choice(KEYS[key]))
        if own.get("d") == 0.0:
            own["d"] = chance.choice((0.0, -0.0))
        record: Row = {TIME: 10 * chance.randint(1, times), ORDER: order, GONE: False, ERROR: None, KEPT: None, **own}
        values: Row = {"v": chance.choice(("x", "y", None)), "w": chance.choice((7, 8))}
        match chance.randint(0, 9):
            case 0 | 1:
                record[GONE] = True
            case 2 if kinds.errors:
                record[ERROR] = f'{{"reason":"bad","offset":{order}}}'
            case 3 if kinds.errors:
                record |= {GONE: None, ERROR: f'{{"reason":"no key","offset":{order}}}', **dict.fromkeys(own)}
            case 4 | 5 | 6 if kinds.kept:
                kept = chance.choice((["v"], ["w"], ["v", "w"], []))
                record |= {name: None if name in kept else value for name, value in values.items()} | {KEPT: kept}
            case _:
                record |= values
        made += [record] * chance.choice((1, 1, 1, 2))
    chance.shuffle(made)
    return made


def records(rows: Iterable[Row], kinds: Kinds) -> pa.Table:
    """Return records as a table; only the columns that these kinds need."""
    rows = [{DIFF: 1, **row} for row in rows]
    left_out = {*(() if kinds.errors else (ERROR,)), *(() if kinds.kept else (KEPT,))}
    columns = {name: kind for name, kind in {**TYPES, **_OURS}.items() if name not in left_out}
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in columns.items()})


def standing(state: State, *, erring: bool) -> pa.Table:
    """Return the rows, or the errors, of a state as updates at time 0."""
    rows = [dict(zip((*TYPES, ERROR), row, strict=True)) | {DIFF: n} for row, n in state.items()]
    rows = [row for row in rows if (row[ERROR] is not None) is erring]
    columns = {**TYPES, **({ERROR: pa.string()} if erring else {}), TIME: pa.int64(), DIFF: pa.int64()}
    return pa.table({n: pa.array([0 if n == TIME else row[n] for row in rows], kind) for n, kind in columns.items()})


def truth(given: Iterable[Row], state: State, key: str) -> list[Row]:
    """Return the updates as the definition has them."""
    rows = [dict(zip((*TYPES, ERROR), row, strict=True)) | {DIFF: n} for row, n in state.items()]
    held = [row for row in rows if row[ERROR] is None]
    errors = [row for row in rows if row[ERROR] is not None]
    return changed(given, held, errors, SCHEMA.names, key.split(","))


def added(state: State, updates: Iterable[Row]) -> State:
    """Return the state after updates."""
    found = Counter(state)
    for row in updates:
        found[tuple(_NAN if value != value else value for value in _values(row))] += row[DIFF]  # noqa: PLR0124 - NaN
    return Counter({row: n for row, n in found.items() if n})


_NAN: Final = math.nan
"""The one NaN of states: a tuple finds the same object again."""


def alike(updates: Iterable[Row]) -> Counter[tuple[object, ...]]:
    """Return updates as a value that two engines share: how a key is written in an error is each engine's own."""
    sums: Counter[tuple[object, ...]] = Counter()
    for row in updates:
        *values, error = _values(row)
        told = None if error is None else json.loads(error)
        if told and "key" in told:
            told["key"] = sorted(told["key"])
        sums[(*map(repr, values), repr(told), row[TIME])] += row[DIFF]
    return Counter({row: n for row, n in sums.items() if n})


def _values(row: Row) -> list[Any]:
    return [normal(row[name]) for name in (*TYPES, ERROR)]


class KeyedContract:
    """The tests for every Engine's keyed records."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run one test's coroutine."""
        asyncio.run(coroutine)

    @pytest.mark.parametrize("kinds", [Kinds(False, False), Kinds(True, False), Kinds(True, True)], ids=str)
    @pytest.mark.parametrize("key", KEYS)
    def test_it_is_the_definition_however_a_history_is_cut(
        self, engine: Engine, load: Load, key: str, kinds: Kinds
    ) -> None:
        """Damage: a key has a row that is not its newest, two rows, or none; or that depends on how steps were cut."""
        given = history(1, key, kinds)
        times = sorted({record[TIME] for record in given})

        async def body() -> None:
            ends = []
            for steps in ([times], [times[:1], times[1:]]):
                state: State = Counter()
                for step in steps:
                    now = [record for record in given if record[TIME] in step]
                    found = await _updates(engine, load, now, state, key, kinds)
                    assert alike(found) == alike(truth(now, state, key))
                    state = added(state, found)
                assert all(n == 1 for row, n in state.items() if row[-1] is None or key_of(row[-1]))
                ends.append(state)
            assert ends[0] == ends[1]

        self.run(body())

    @pytest.mark.parametrize("way", WAYS)
    def test_what_is_staged_is_what_is_there(self, engine: Engine, load: Load, way: str) -> None:
        """Damage: the plan is right and the batch is not: withdrawals are lost where parts are written."""
        one: Row = {"k": 1, "p": "a", "v": "x"}
        given = [
            {**one, TIME: 3, ORDER: 0, GONE: False},
            {**one, "v": "y", TIME: 5, ORDER: 0, GONE: False},
            {"k": 2, "p": None, TIME: 3, ORDER: 0, GONE: True},
        ]
        before = added(Counter(), [{**dict.fromkeys((*TYPES, ERROR)), "k": 2, "v": "old", DIFF: 1}])

        async def body() -> None:
            with arrived(engine, records(given, Kinds(False, False))) as new:
                rows = await _keyed(engine, load, new, before, "k,p")
                staged = await engine.stage(rows, replace(request(way, schema=SCHEMA), sort=("k", "p")))
            assert (staged.rows, staged.diffs, staged.plain) == (4, 0, False)
            read = await engine.read(replace(contents(staged, schema=SCHEMA), half=Half.BOTH))
            found = (await engine.collect(read)).to_pylist()
            assert sorted((row["k"], row["v"], row[TIME], row[DIFF]) for row in found) == [
                (1, "x", 3, 1),
                (1, "x", 5, -1),
                (1, "y", 5, 1),
                (2, "old", 3, -1),
            ]

        self.run(body())

    def test_a_row_that_comes_again_as_it_is_changes_nothing(self, engine: Engine, load: Load) -> None:
        """Damage: a topic that is sent once more makes a batch of the size of the table."""
        same: Row = {**dict.fromkeys((*TYPES, ERROR)), "k": 1, "d": math.nan, "m": Decimal("2.00")}

        async def body() -> None:
            again = {**same, "m": Decimal("2.00"), TIME: 3, ORDER: 9, GONE: False}
            with arrived(engine, records([again], Kinds(False, False))) as new:
                rows = await _keyed(engine, load, new, added(Counter(), [{**same, DIFF: 1}]), "k")
                staged = await engine.stage(rows, request("inline", schema=SCHEMA))
            assert staged.rows == 0

        self.run(body())

    def test_rows_of_other_keys_are_left_alone(self, engine: Engine, load: Load) -> None:
        """Damage: a look-up that gives more than was asked for, or a whole read, empties the collection."""
        others = [{**dict.fromkeys((*TYPES, ERROR)), "k": k, "p": p, DIFF: 1} for k, p in ((2, "a"), (1, None))]
        before = added(Counter(), others)

        async def body() -> None:
            new = {"k": 1, "p": "a", "v": "x", TIME: 3, ORDER: 0, GONE: False}
            found = await _updates(engine, load, [new], before, "k,p", Kinds(False, False))
            assert [(row["k"], row["p"], row[DIFF]) for row in found] == [(1, "a", 1)]

        self.run(body())

    def test_an_error_says_its_key_and_goes_with_the_next_record_of_it(self, engine: Engine, load: Load) -> None:
        """Damage: a value that upstream has mended keeps its source failing; or the last good row stays, silently."""
        bad = {"k": 1, TIME: 3, ORDER: 0, GONE: False, ERROR: "somewhere"}
        good = {"k": 1, "v": "x", TIME: 4, ORDER: 0, GONE: False}

        async def body() -> None:
            first = await _updates(engine, load, [bad], Counter(), "k", Kinds(True, False))
            (error,) = (row[ERROR] for row in first)
            assert json.loads(error) == {"key": {"k": "1"}, "reason": "somewhere"}
            for later, left in (([good], 1), ([{**good, GONE: True, "v": None}], 0)):
                second = await _updates(engine, load, later, added(Counter(), first), "k", Kinds(True, False))
                assert (error, -1) in [(row[ERROR], row[DIFF]) for row in second]
                assert sum(added(added(Counter(), first), second).values()) == left

        self.run(body())

    def test_what_stays_as_it_was_is_not_invented(self, engine: Engine, load: Load) -> None:
        """Damage: a value that upstream did not send becomes NULL, without an error."""
        partial: Row = {"k": 1, "w": 8, KEPT: ["v"], TIME: 3, ORDER: 0, GONE: False}
        row = {**dict.fromkeys((*TYPES, ERROR)), "k": 1, "v": "long", "w": 7, DIFF: 1}

        async def body() -> None:
            kinds = Kinds(False, True)
            found = await _updates(engine, load, [partial], added(Counter(), [row]), "k", kinds)
            assert [(each["v"], each["w"]) for each in found if each[DIFF] == 1] == [("long", 8)]
            gone: Row = {"k": 1, TIME: 2, ORDER: 0, GONE: True}
            cases: list[tuple[State, list[Row]]] = [(Counter(), [partial]), (added(Counter(), [row]), [gone, partial])]
            for state, given in cases:
                found = await _updates(engine, load, given, state, "k", kinds)
                (error,) = (each[ERROR] for each in found if each[DIFF] == 1)
                assert json.loads(error) == {"key": {"k": "1"}, "reason": NOTHING_KEPT}

        self.run(body())

    def test_records_that_are_not_whole_are_refused_by_name(self, engine: Engine) -> None:
        """Damage: a reader that forgets a column has its records read as something else."""

        async def body() -> None:
            whole = records([{"k": 1, TIME: 3, ORDER: 0, GONE: False}], Kinds(False, False))
            with engine.arrivals(SCHEMA, keyed=True) as into:
                for name in (GONE, ORDER, TIME, "v"):
                    with pytest.raises(InvalidUsage, match=name):
                        into.add(whole.drop_columns([name]))
                with pytest.raises(InvalidUsage, match="other"):
                    into.add(whole.append_column("other", pa.array([1])))

        self.run(body())


@contextmanager
def arrived(engine: Engine, given: pa.Table, schema: Schema = SCHEMA) -> Iterator[Rows]:
    """Hold records as a reader hands them over."""
    with engine.arrivals(schema, keyed=True) as into:
        into.add(given)
        yield into.rows()


async def _keyed(engine: Engine, load: Load, given: Rows, state: State, key: str) -> Rows:
    rows, errors = (standing(state, erring=erring) for erring in (False, True))
    return await engine.keyed(
        given,
        load(rows, SCHEMA) if rows.num_rows else None,
        load(errors, SCHEMA) if errors.num_rows else None,
        SCHEMA,
        key.split(","),
    )


async def _updates(engine: Engine, load: Load, given: Iterable[Row], state: State, key: str, kinds: Kinds) -> list[Row]:
    """Return the updates as they are staged, of both halves."""
    with arrived(engine, records(given, kinds)) as new:
        staged = await engine.stage(await _keyed(engine, load, new, state, key), _request())
    read = await engine.read(replace(contents(staged, schema=SCHEMA), half=Half.BOTH))
    found: list[Row] = (await engine.collect(read)).to_pylist()
    return found


def _request() -> Any:
    return request("inline", upper=1000, schema=SCHEMA)
