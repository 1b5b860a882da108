"""Law: what is left out by the bounds of keys has none of these keys, whatever the types, the parts and the NULLs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.parts.scan import Reach
from strandline.engine.spark import SparkEngine
from strandline.persist.shard.batch import Staged
from strandline.testing.contracts.engine_contract import contents, request, updates

pytestmark = pytest.mark.spark

KINDS = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "date": pa.date32()}
PARTS, ROWS = 8, 30


def value(kind: str, number: int) -> Any:
    """Return the value of a key, in the order of its numbers."""
    match kind:
        case "string":
            return f"é{number:05d}" if number % 2 else f"é{number:05d}" + "x" * 80
        case "date":
            return date(1969, 6, 1) + timedelta(days=number)
    return number - 100


class Shard:
    """A collection whose parts hold keys that lie together, some of them withdrawn, and some NULL."""

    def __init__(self, kind: str, chance: random.Random) -> None:
        self.schema = Schema((Column("k", kind), Column("v", "int")))
        self.kind = KINDS[kind]
        self.parts: list[list[tuple[Any, int, int]]] = []
        for part in range(PARTS):
            numbers = [part * 50 + chance.randrange(60) for _ in range(ROWS)]
            rows = [(value(kind, number), n, 1) for n, number in enumerate(numbers)]
            if part == 3:
                rows.append((None, part, 1))
            if part:
                rows += [(key, v, -1) for key, v, _ in chance.sample(self.parts[-1], 3)]
            self.parts.append(rows)

    def table(self, rows: list[tuple[Any, int, int]], time: int) -> pa.Table:
        """Return updates, all at one time."""
        keys, values, diffs = (list(column) for column in zip(*rows, strict=True))
        times = pa.array([time] * len(rows), pa.int64())
        return pa.table(
            {
                "k": pa.array(keys, self.kind),
                "v": pa.array(values, pa.int32()),
                TIME: times,
                DIFF: pa.array(diffs, pa.int64()),
            }
        )

    async def staged(self, engine: SparkEngine) -> list[Staged]:
        """Return a batch for each part, of one time each."""
        made = []
        for time, rows in enumerate(self.parts):
            wanted = request("bulk", lower=time, upper=time + 1, schema=self.schema)
            made.append(await engine.stage(engine.from_arrow(self.table(rows, time), self.schema), wanted))
        return made

    def wanted(self, keys: set[Any]) -> Counter[tuple[Any, ...]]:
        """Return the contents at the end that have one of the keys."""
        held: Counter[tuple[Any, ...]] = Counter()
        for rows in self.parts:
            for key, v, diff in rows:
                held[key, v, PARTS] += diff
        return Counter({row: diff for row, diff in held.items() if diff and row[0] in keys})


async def _check(engine: SparkEngine, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    shard = Shard(kind, chance)
    old = replace(contents(*await shard.staged(engine), schema=shard.schema), advance=PARTS)
    begin, nulls = chance.randrange(250), chance.random() < 0.5
    keys = {value(kind, begin + chance.randrange(60)) for _ in range(8)}
    rows = shard.table([(key, 0, 1) for key in [*keys, None]], PARTS)
    change = engine.from_arrow(rows, shard.schema)
    if chance.random() < 0.5:
        change = engine.from_dataframe(engine.spark_frame(change))
    found = await engine.prune(old, "k", [(change, "k")], nulls=nulls)
    assert found is not None
    got = updates(await engine.collect(found))
    wanted = keys | {None} if nulls else keys
    assert {row: diff for row, diff in got.items() if row[0] in wanted} == shard.wanted(wanted)
    everything = updates(await engine.collect(await engine.read(old)))
    assert got.items() <= everything.items()
    assert sum(got.values()) < sum(everything.values())


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> SparkEngine:
    """An engine with its parts in a fresh directory."""
    return SparkEngine(spark.newSession(), PartStore(tmp_path))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_with_the_keys_are_read_and_not_all_rows(engine: SparkEngine, kind: str) -> None:
    """Damage: a join misses rows that lie at the edge of the keys, have NULL, or were withdrawn."""
    for seed in range(3):
        asyncio.run(_check(engine, kind, seed))


def _touching_no_edge(reach: Reach, group: Any) -> bool:
    known = group.column(0).statistics
    return bool(reach.least <= known.min and known.max <= reach.greatest)


def _without_null(reach: Reach, group: Any) -> bool:
    known = group.column(0).statistics
    return bool(known.min <= reach.greatest and known.max >= reach.least)


@pytest.mark.parametrize("bug", [_touching_no_edge, _without_null])
def test_a_part_that_is_passed_over_wrongly_is_noticed(
    engine: SparkEngine, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the law above holds of anything."""
    monkeypatch.setattr(Reach, "_meets", bug)
    with pytest.raises(AssertionError):
        for seed in range(6):
            asyncio.run(_check(engine, "int", seed))


def test_keys_that_lie_apart_are_left_to_a_scan(engine: SparkEngine) -> None:
    """Damage: a filter that lets almost all rows through is evaluated on every one."""

    async def body() -> None:
        shard = Shard("int", random.Random(1))
        old = contents(*await shard.staged(engine), schema=shard.schema)
        ends = engine.from_arrow(shard.table([(value("int", 0), 0, 1), (value("int", 300), 0, 1)], 0), shard.schema)
        none = engine.from_arrow(shard.table([(None, 0, 1)], 0), shard.schema)
        assert await engine.prune(old, "k", [(ends, "k")], nulls=False) is None
        assert await engine.prune(old, "k", [(none, "k")], nulls=True) is None

    asyncio.run(body())


def test_parts_beyond_the_keys_are_not_opened(engine: SparkEngine) -> None:
    """Damage: each file of a large collection is opened for a change of one day."""

    async def body() -> None:
        shard = Shard("int", random.Random(2))
        old = contents(*await shard.staged(engine), schema=shard.schema)
        key = engine.from_arrow(shard.table([(value("int", 130), 0, 1)], 0), shard.schema)
        found = await engine.prune(old, "k", [(key, "k")], nulls=False)
        assert found is not None
        assert 0 < len(engine.spark_frame(found).inputFiles()) <= 2

    asyncio.run(body())
