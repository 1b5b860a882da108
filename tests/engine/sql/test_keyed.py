"""Keyed records as SQL: what it costs, and planted mistakes in it, which the comparison with the definition notices."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.frames.transforms import plan
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.engine.sql import grouping
from strandline.engine.sql.rendering import render
from strandline.persist.handles.contents import Rows
from strandline.testing.contracts.keyed_contract import (
    SCHEMA,
    Kinds,
    State,
    added,
    alike,
    arrived,
    history,
    records,
    standing,
    truth,
)

NAMES: Final = {"records": "r", "held": "h", "errors": "e"}
RECORD: Final = (*SCHEMA.names, ORDER, GONE)


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Iterator[SparkEngine]:
    """An engine on the shared application, with parts of its own."""
    made = SparkEngine(spark, PartStore(tmp_path))
    yield made
    made.close()


def test_records_into_nothing_are_read_once_and_joined_with_nothing() -> None:
    """Damage: the first millions of messages are read and decoded twice."""
    for columns in (RECORD, (*RECORD, ERROR), (*RECORD, ERROR, KEPT)):
        text = render(plan(columns, SCHEMA, ["k"], held=False, errors=False), NAMES).split("\nSELECT", 1)[-1]
        assert text.count("FROM `r`") <= 1
        assert " JOIN " not in text


def test_a_plan_names_no_time() -> None:
    """Damage: a plan is compiled anew at every step."""
    text = render(plan((*RECORD, ERROR, KEPT), SCHEMA, ["k"], held=True, errors=True), NAMES)
    assert not any(word.isdigit() and len(word) > 1 for word in text.split())


HOLDING: Final = Kinds(True, True)
_INVENTED: Final = ("AND NOT first_value", "AND false AND first_value")
_LAST: Final = (" OR __next > __time", "")
SEEDS: Final = (3, 13, 19, 29)
"""In some of these histories an error that is held goes."""
PLANTS: Final[dict[str, tuple[str, Callable[[Callable[..., Any]], Callable[..., Any]]]]] = {
    "the first record of a time counts": ("_order", lambda right: _textual(right, "__order", "__order DESC")),
    "only the last time of a key counts": (
        "_counting",
        lambda right: _textual(right, *_LAST),
    ),
    "what goes at the next time stays": ("_standing", lambda right: _textual(right, "'sign', -1L", "'sign', 0L")),
    "a held row with a NULL in its key stays": ("_touched", lambda right: _textual(right, "<=>", "=")),
    "what is held goes at the last time": ("_first", lambda right: _textual(right, "min(", "max(")),
    "what was left out is NULL": ("_last", lambda _: lambda name, order: f"`{name}`"),
    "what was left out is invented": (
        "_filled",
        lambda right: _textual(right, *_INVENTED),
    ),
    "an error without a key is of the key of NULLs": ("_parts", lambda _: grouping._keys),
    "an error stays": ("_errors_gone", lambda right: _textual(right, "-e.__diff", "0L")),
}


def _textual(right: Callable[..., str], old: str, new: str) -> Callable[..., str]:
    def wrong(*given: Any, **named: Any) -> str:
        text = right(*given, **named)
        return text.replace(old, new)

    return wrong


def _differs(engine: SparkEngine, key: str, seeds: Iterable[int]) -> bool:
    """Tell whether the updates of some history are not those of the definition."""

    async def one(seed: int) -> bool:
        given = history(seed, key, HOLDING)
        times = sorted({record[TIME] for record in given})
        state: State = Counter()
        for step in (times[:1], times[1:]):
            now = [record for record in given if record[TIME] in step]
            there, errors = (_loaded(engine, state, erring=erring) for erring in (False, True))
            with arrived(engine, records(now, HOLDING)) as rows:
                found = await engine.collect(await engine.keyed(rows, there, errors, SCHEMA, key.split(",")))
            want = truth(now, state, key)
            if alike(found.to_pylist()) != alike(want):
                return True
            state = added(state, want)
        return False

    return any(asyncio.run(one(seed)) for seed in seeds)


def _loaded(engine: SparkEngine, state: State, *, erring: bool) -> Rows | None:
    rows = standing(state, erring=erring)
    return engine.from_arrow(rows, SCHEMA) if rows.num_rows else None


@pytest.mark.spark
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_noticed(name: str, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the contract of keyed records would pass whatever the text says."""
    function, sabotage = PLANTS[name]
    monkeypatch.setattr(grouping, function, sabotage(getattr(grouping, function)))
    assert _differs(engine, "k,p", SEEDS)


@pytest.mark.spark
def test_without_a_mistake_nothing_is_noticed(engine: SparkEngine) -> None:
    """Damage: whatever is planted would seem to be found."""
    assert not _differs(engine, "k,p", SEEDS)


KEYS: Final = {
    "b": ("boolean", pa.bool_(), True),
    "i": ("bigint", pa.int64(), -(2**63)),
    "d": ("double", pa.float64(), math.nan),
    "f": ("float", pa.float32(), -0.0),
    "s": ("string", pa.string(), 'a "quoted" \\ é\u0000\n{'),
    "x": ("binary", pa.binary(), b"\x00\xff"),
    "day": ("date", pa.date32(), dt.date(1582, 10, 4)),
    "at": ("timestamp", pa.timestamp("us", tz="UTC"), dt.datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=dt.UTC)),
    "wall": ("timestamp_ntz", pa.timestamp("us"), dt.datetime(2024, 3, 31, 2, 30, 0, 1)),  # noqa: DTZ001 - no zone
    "m": ("decimal(38,10)", pa.decimal128(38, 10), -1),
}
DEEP: Final = pa.list_(pa.struct([pa.field("f", pa.float64()), pa.field("g", pa.list_(pa.int32()))]))
EVERY: Final = Schema(
    (*(Column(n, text) for n, (text, _, _) in KEYS.items()), Column("deep", "array<struct<f:double,g:array<int>>>"))
)


@pytest.mark.spark
def test_keys_of_every_type_find_their_rows_and_their_errors(engine: SparkEngine) -> None:
    """Damage: an error stays for ever, because its key is written otherwise than it was; or a row is there twice."""
    own = {name: value for name, (_, _, value) in KEYS.items()}
    keys = [own, dict.fromkeys(KEYS), {**own, "at": own["at"] + dt.timedelta(hours=1)}, {**own, "s": None}]

    def table(time: int, deep: Any = None, error: str | None = None) -> pa.Table:
        columns = {n: pa.array([key[n] for key in keys], kind) for n, (_, kind, _) in KEYS.items()}
        columns |= {"deep": pa.array([deep] * len(keys), DEEP), ERROR: pa.array([error] * len(keys), pa.string())}
        columns |= {
            TIME: pa.array([time] * len(keys)),
            DIFF: pa.array([1] * len(keys)),
            ORDER: pa.array(range(len(keys))),
        }
        return pa.table(columns | {GONE: pa.array([False] * len(keys))})

    async def changes(given: pa.Table, held: pa.Table | None, errors: pa.Table | None) -> pa.Table:
        there = [None if each is None else engine.from_arrow(each, EVERY) for each in (held, errors)]
        with arrived(engine, given, EVERY) as new:
            return await engine.collect(await engine.keyed(new, *there, EVERY, list(KEYS)))

    async def body() -> None:
        bad = await changes(table(1, error="bad"), None, None)
        assert [json.loads(error)["key"]["at"] for error in bad[ERROR].to_pylist()].count(None) == 1
        assert len(set(bad[ERROR].to_pylist())) == len(keys)
        good = await changes(table(2, [{"f": -0.0, "g": [1, None]}, None]), None, bad)
        assert Counter(good[DIFF].to_pylist()) == {1: len(keys), -1: len(keys)}
        assert sorted(error for error in good[ERROR].to_pylist() if error) == sorted(bad[ERROR].to_pylist())
        rows = good.filter(pa.compute.is_null(good[ERROR])).drop_columns([ERROR])
        again = await changes(table(3, [{"f": 0.0, "g": [1, None]}, None]), rows, None)
        assert Counter(again[DIFF].to_pylist()) == {1: len(keys), -1: len(keys)}

    asyncio.run(body())
