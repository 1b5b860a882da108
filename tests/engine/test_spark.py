"""`SparkEngine` keeps the engine's contract, every type that a collection can hold, and refuses damaged parts."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.nodes import Filter, Get, Project
from strandline.algebra.scalar import scalar
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.frames.inline import update_schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.prepared import plans
from strandline.engine.prepared.plans import Asked, Plans
from strandline.engine.spark import SparkEngine
from strandline.errors import CorruptionError, DefinitionError, InvalidUsage
from strandline.persist.handles.contents import StageRequest
from strandline.persist.shard.batch import BlobPart, InlinePart, Staged
from strandline.testing.contracts import engine_contract
from strandline.testing.contracts.engine_contract import WAYS, EngineContract, contents, request, table, updates
from strandline.testing.contracts.keyed_contract import KeyedContract
from strandline.testing.contracts.lookup_contract import LookupContract

pytestmark = pytest.mark.spark

TYPES = {
    "b": "boolean",
    "i1": "tinyint",
    "i2": "smallint",
    "i4": "int",
    "i8": "bigint",
    "f": "float",
    "d": "double",
    "s": "string",
    "x": "binary",
    "day": "date",
    "at": "timestamp",
    "wall": "timestamp_ntz",
    "amount": "decimal(12,2)",
    "wide": "decimal(38,10)",
    "list": "array<double>",
    "odd `name`": "struct<a:int,`b c`:array<string>>",
    "deep": "array<struct<f:float,g:array<int>>>",
}
EVERYTHING = Schema(tuple(Column(name, text) for name, text in TYPES.items()))
ROW = {
    "b": True,
    "i1": -128,
    "i2": 2,
    "i4": -3,
    "i8": 2**63 - 1,
    "f": -0.0,
    "d": math.nan,
    "s": "é\u0000'`\\",
    "x": b"\x00\xff",
    "day": dt.date(1582, 10, 4),
    "at": dt.datetime(1900, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "wall": dt.datetime(2024, 3, 31, 2, 30, 0, 1),  # noqa: DTZ001 - a wall time has no zone
    "amount": decimal.Decimal("-1.25"),
    "wide": decimal.Decimal("1234567890123456789012345678.0000000001"),
    "list": [1.0, None, -0.0, math.nan],
    "odd `name`": {"a": None, "b c": ["x", None]},
    "deep": [{"f": -0.0, "g": [1, None]}, None, {"f": None, "g": []}],
}
EMPTIES = dict.fromkeys(TYPES) | {"list": [], "s": "", "x": b"", "odd `name`": {"a": None, "b c": None}}
NULLS = dict.fromkeys(TYPES)
NEVER = 1 << 30


@pytest.fixture(params=["fresh", "prepared"])
def engine(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkEngine]:
    """An engine on the shared application, with parts of its own; it plans what is small afresh, or prepares it."""
    monkeypatch.setattr(plans, "ASKED_MIN", 1 if request.param == "prepared" else NEVER)
    made = SparkEngine(spark, PartStore(tmp_path))
    yield made
    made.close()


@pytest.fixture
def load(engine: SparkEngine) -> Callable[..., object]:
    """The contract's way to make rows."""
    return engine.from_arrow


@pytest.mark.drawn(3)
class TestSparkEngine(EngineContract, LookupContract, KeyedContract):
    """The shared contract."""


def stage_bulk(engine: SparkEngine, rows: int = 200) -> Staged:
    """Return a batch that Spark wrote."""
    written = [(i, f"value {i * 7919 % 1000}", 1 + i % 5, 1) for i in range(rows)]
    return asyncio.run(engine.stage(engine.from_arrow(table(written), engine_contract.SCHEMA), request("bulk")))


def everything(*rows: dict[str, object]) -> pa.Table:
    """Return insertions at time 1 under `EVERYTHING`."""
    return pa.Table.from_pylist([r | {TIME: 1, DIFF: 1} for r in rows], update_schema(EVERYTHING)).drop_columns(
        ["__error"]
    )


def test_every_type_comes_back_as_it_was_normalised_whatever_the_way(engine: SparkEngine) -> None:
    """Damage: a value changes between a view and its reader, or only when a batch grows large."""

    async def body() -> None:
        read, digests = [], set()
        for way in WAYS:
            rows = engine.from_arrow(everything(ROW, EMPTIES, NULLS), EVERYTHING)
            staged = await engine.stage(rows, request(way, schema=EVERYTHING))
            kind = InlinePart if way == "inline" else BlobPart
            assert all(isinstance(part, kind) for part in staged.parts)
            digests.add(staged.digest)
            found = await engine.collect(await engine.read(contents(staged, schema=EVERYTHING)))
            read.append(sorted(map(repr, found.to_pylist())))
        assert len(digests) == 1
        assert read[0] == read[1] == read[2]
        back = next(row for row in found.to_pylist() if row["b"])
        assert repr(back["f"]) == repr(back["deep"][0]["f"]) == repr(back["list"][2]) == "0.0"
        assert math.isnan(back["d"])
        assert math.isnan(back["list"][3])
        exact = TYPES.keys() - {"f", "d", "list", "deep"}
        assert {name: back[name] for name in exact} == {name: ROW[name] for name in exact}

    asyncio.run(body())


def test_rows_that_differ_only_in_the_sign_of_zero_are_one_row(engine: SparkEngine) -> None:
    """Damage: a row is inserted as 0.0 and can never be withdrawn as −0.0."""

    async def body() -> None:
        rows = engine.from_arrow(everything(NULLS | {"d": 0.0}, NULLS | {"d": -0.0}), EVERYTHING)
        staged = await engine.stage(rows, request("inline", schema=EVERYTHING))
        assert (staged.rows, staged.diffs) == (1, 2)

    asyncio.run(body())


@pytest.mark.parametrize("pair", [([1, None], [None, 1]), ([1], [1, None]), ([], None)], ids=str)
def test_nested_nulls_count_in_the_digest(engine: SparkEngine, pair: tuple[list[int] | None, ...]) -> None:
    """Damage: two different arrays look equal to every check."""
    schema = Schema((Column("a", "array<int>"),))

    async def body() -> None:
        digests = set()
        for value in pair:
            made = pa.table({"a": pa.array([value], pa.list_(pa.int32())), TIME: pa.array([1]), DIFF: pa.array([1])})
            digests.add((await engine.stage(engine.from_arrow(made, schema), request("inline", schema=schema))).digest)
        assert len(digests) == 2

    asyncio.run(body())


def test_a_widened_column_keeps_its_digest(engine: SparkEngine) -> None:
    """Damage: widening a column, which changes metadata only, would look like a corruption of every batch."""

    async def body() -> None:
        digests = set()
        for text, kind in (("tinyint", pa.int8()), ("int", pa.int32()), ("bigint", pa.int64())):
            schema = Schema((Column("a", text),))
            made = pa.table({"a": pa.array([7], kind), TIME: pa.array([1]), DIFF: pa.array([1])})
            digests.add((await engine.stage(engine.from_arrow(made, schema), request("inline", schema=schema))).digest)
        assert len(digests) == 1

    asyncio.run(body())


@pytest.mark.parametrize(
    "text", ["map<string,int>", "variant", "string collate UTF8_LCASE", "array<map<int,int>>", "interval day to second"]
)
def test_a_type_without_one_binary_form_is_refused_and_its_column_named(engine: SparkEngine, text: str) -> None:
    """Damage: equal values that differ in bytes correct each other for ever."""
    schema = Schema((Column("awkward", text),))
    rows = engine.from_arrow(table([(1, "a", 1, 1)]), engine_contract.SCHEMA)
    with pytest.raises(DefinitionError, match="awkward"):
        asyncio.run(engine.stage(rows, request("bulk", schema=schema)))


@pytest.mark.parametrize("text", ["bigint", "string"])
def test_a_column_of_another_type_is_refused(engine: SparkEngine, text: str) -> None:
    """Damage: a part that no later read can open is appended."""
    rows = engine.from_arrow(table([(1, "a", 1, 1)]), engine_contract.SCHEMA)
    other = Schema((Column("k", text), Column("v", "string")))
    with pytest.raises(InvalidUsage, match="'k'"):
        asyncio.run(engine.stage(rows, request("bulk", schema=other)))


def test_a_refused_batch_leaves_no_file(engine: SparkEngine, tmp_path: Path) -> None:
    """Damage: every failed stage leaks its files."""
    rows = engine.from_arrow(table([(1, "a", 99, 1)]), engine_contract.SCHEMA)
    with pytest.raises(InvalidUsage):
        asyncio.run(engine.stage(rows, request("bulk")))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_normalised_rows_are_staged_as_they_are(engine: SparkEngine) -> None:
    """Damage: bulk input pays for a shuffle that its source made unnecessary."""
    twice = engine.from_arrow(table([(1, "a", 1, 1), (1, "a", 1, 1)]), engine_contract.SCHEMA)
    asked = StageRequest("shard-1", engine_contract.SCHEMA, 0, 10, "shard-1/asis/", normalised=True)
    staged = asyncio.run(engine.stage(twice, asked))
    assert (staged.rows, staged.diffs, staged.plain) == (2, 2, True)


def test_a_part_is_sorted_and_keeps_its_sidecar(engine: SparkEngine, tmp_path: Path) -> None:
    """Damage: statistics prune nothing, and a flipped byte outside the pages goes unseen."""
    staged = stage_bulk(engine)
    for part in staged.parts:
        assert isinstance(part, BlobPart)
        assert (tmp_path / part.sidecar).is_file()
        keys = pq.read_table(tmp_path / part.key)["k"].to_pylist()
        assert keys == sorted(keys)
    assert not list(tmp_path.rglob("_SUCCESS"))


def damage(path: Path, at: int) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("offset", [-1, -6, -9, -40], ids=["magic", "length", "footer end", "footer"])
def test_a_flipped_byte_of_the_footer_is_refused_before_any_job(
    engine: SparkEngine, tmp_path: Path, offset: int
) -> None:
    """Damage: a wrong row count or a wrong column offset gives wrong rows, silently."""
    staged = stage_bulk(engine)
    part = staged.parts[0]
    assert isinstance(part, BlobPart)
    damage(tmp_path / part.key, offset)
    with pytest.raises(CorruptionError, match=part.key):
        asyncio.run(engine.read(contents(staged)))


def test_a_truncated_part_is_refused(engine: SparkEngine, tmp_path: Path) -> None:
    """Damage: a torn write reads as fewer rows."""
    staged = stage_bulk(engine)
    path = tmp_path / staged.parts[0].key  # type: ignore[union-attr]
    for keep in (path.stat().st_size - 1, 10, 0):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CorruptionError, match="bytes"):
            asyncio.run(engine.read(contents(staged)))


@pytest.mark.parametrize("way", ["small", "bulk"])
def test_a_flipped_byte_of_a_page_is_refused_when_it_is_read(engine: SparkEngine, tmp_path: Path, way: str) -> None:
    """Damage: a bad disk changes a value, and no error reports it."""

    async def body() -> None:
        written = [(i, f"value {i}", 1, 1) for i in range(100)]
        staged = await engine.stage(engine.from_arrow(table(written), engine_contract.SCHEMA), request(way))
        part = staged.parts[0]
        assert isinstance(part, BlobPart)
        path = tmp_path / part.key
        chunk = pq.read_metadata(path).row_group(0).column(1)
        start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
        damage(path, start + chunk.total_compressed_size // 2)
        rows = await engine.read(contents(staged))
        with pytest.raises(CorruptionError):
            await engine.collect(rows)

    asyncio.run(body())


def test_more_rows_than_the_hint_promised_fall_through_to_spark(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a wrong guess brings a large result to the driver, or loses the rows past the limit."""
    monkeypatch.setattr("strandline.engine.parts.staging.SMALL_ROWS_MAX", 20)
    written = [(i, "a", 1, 1) for i in range(50)]

    async def body() -> None:
        rows = engine.from_arrow(table(written), engine_contract.SCHEMA)
        staged = await engine.stage(rows, request("inline"))
        assert staged.rows == 50
        assert all(isinstance(part, BlobPart) and part.sidecar for part in staged.parts)
        assert len(updates(await engine.collect(await engine.read(contents(staged))))) == 50

    asyncio.run(body())


@pytest.mark.parametrize("beside", [True, False], ids=["run together", "run alone"])
def test_a_plan_behind_another_reads_what_that_gives_now(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Damage: what two stages need is computed twice in a tick; or a stage gets rows of an earlier tick."""
    read: list[int] = []
    run = Plans.run

    def counted(self: Plans, asked: Sequence[Asked]) -> list[pa.Table | None]:
        read.extend(table.num_rows for each in asked for table in each.tables.values())
        return run(self, asked)

    monkeypatch.setattr(Plans, "run", counted)
    engine = SparkEngine(spark, PartStore(tmp_path))
    below = Filter(Get("f", (("k", "k"), ("v", "v"))), scalar("`k` % 10 = 0"))
    above = Project(Get("g", (("k", "k"),)), (("twice", scalar("`k` * 2")),))
    schema = Schema((Column("twice", "int"),))

    async def body() -> None:
        for turn in range(3):
            given = engine.from_arrow(table([(n, "a", 1, 1) for n in range(turn, 40)]), engine_contract.SCHEMA)
            drafted = await engine.evaluate(below, {"f": given})
            behind = await engine.derived(above, {"g": (engine_contract.SCHEMA, drafted)})
            assert behind is not None
            asked = [(behind, request("inline", schema=schema)), *([(drafted, request("inline"))] if beside else [])]
            staged = (await engine.stage_many(asked))[0]
            assert isinstance(staged, Staged)
            found = await engine.collect(await engine.read(contents(staged, schema=schema)))
            assert sorted(found["twice"].to_pylist()) == [2 * n for n in (0, 10, 20, 30) if n >= turn]
            assert read == [40 - turn, *([4 - bool(turn)] if beside else [])]
            read.clear()

    asyncio.run(body())
    engine.close()
