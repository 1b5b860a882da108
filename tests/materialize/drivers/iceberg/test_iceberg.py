"""What is Iceberg's own: types, snapshots, and a catalog that a server has."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema as Stored
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField, StringType
from tests.materialize.drivers.iceberg.iceberg_endpoint import FolderCatalog, IcebergEndpoint
from tests.materialize.drivers.staged.late import SCENARIOS, applied_while_a_successor_goes_on

from iceberg_server import TOKEN, IcebergServer
from strandline import extras
from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, DefinitionError, StrandlineError
from strandline.materialize.driver import require_all
from strandline.materialize.drivers.iceberg import table as table_module
from strandline.materialize.drivers.iceberg.kind import KIND, IcebergEndpointOptions
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.options import understood
from strandline.testing.contracts.drivers.driver_contract import crash_once, follow, put_back
from strandline.testing.contracts.drivers.world import World, advance_through
from strandline.testing.doubles import HandClock
from strandline.testing.simulation.crashes import CrashPlan

NAMESPACES = count()
ALL = {
    "k": ("bigint", pa.int64(), 1),
    "b": ("boolean", pa.bool_(), True),
    "i8": ("tinyint", pa.int8(), -128),
    "i16": ("smallint", pa.int16(), -32768),
    "i32": ("int", pa.int32(), 2**31 - 1),
    "f": ("float", pa.float32(), 0.5),
    "d": ("double", pa.float64(), 1e300),
    "n": ("decimal(38,10)", pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789")),
    "s": ("string", pa.string(), "a\0\U0001f30a"),
    "y": ("binary", pa.binary(), b"\0\xff"),
    "day": ("date", pa.date32(), date(1969, 12, 31)),
    "t": ("timestamp", pa.timestamp("us", "UTC"), datetime(1582, 10, 15, 1, 2, 3, 4, ZoneInfo("UTC"))),
    "tn": ("timestamp_ntz", pa.timestamp("us"), datetime(2024, 2, 29, 23, 59, 59, 999_999)),  # noqa: DTZ001 - it has none
    "l": ("array<int>", pa.list_(pa.int32()), [1, None]),
    "o": (
        "struct<`a b`:int,`c`:array<string>>",
        pa.struct([("a b", pa.int32()), ("c", pa.list_(pa.string()))]),
        {"a b": 1, "c": ["x", None]},
    ),
}
EVERY = Schema(tuple(Column(name, kind) for name, (kind, _, _) in ALL.items()))
ONE = Schema((Column("k", "bigint"), Column("x", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), ONE),))
ADDED = MaterializationSpec("m", (Binding("v", "t", (), ONE, delta=True, diffs=True),))
TYPES = {"k": pa.int64(), "x": pa.string()}


@pytest.fixture
def endpoint(tmp_path: Path) -> IcebergEndpoint:
    """An endpoint without a table."""
    return IcebergEndpoint(lambda: FolderCatalog(tmp_path))


@pytest.mark.parametrize(
    ("catalog", "uri", "lacks"),
    [
        ("sql", "sqlite:///c.db", r"sqlalchemy, .* pip install 'pyiceberg\[sql-sqlite\]'"),
        ("sql", "postgresql://h/d", r"sqlalchemy, .* pip install 'pyiceberg\[sql-postgres\]'"),
        ("glue", None, r"boto3, .* pip install 'pyiceberg\[glue\]'"),
        ("hive", "thrift://h:1", r"thrift, .* pip install 'pyiceberg\[hive\]'"),
    ],
    ids=str,
)
def test_a_library_that_a_catalog_needs_is_missed_at_create(
    monkeypatch: pytest.MonkeyPatch, catalog: str, uri: str | None, lacks: str
) -> None:
    """Damage: the materialization is made, and its task fails at each tick with an unexpected error."""
    monkeypatch.setattr(extras, "there", lambda _: False)
    given = {"catalog": catalog, "namespace": "n"} | ({"uri": uri} if uri else {})
    with pytest.raises(ConfigError, match=lacks):
        KIND.open(understood("m", IcebergEndpointOptions, given), HandClock())


def run(world: World, *uppers: int) -> None:
    """Advance a new runtime."""
    asyncio.run(advance_through(world, world.runtime(), uppers))


def served(server: IcebergServer) -> IcebergEndpoint:
    """Return an endpoint whose catalog is a server."""
    return IcebergEndpoint(
        lambda: load_catalog("tests", type="rest", uri=server.uri, token=TOKEN), f"out{next(NAMESPACES)}"
    )


def test_every_type_is_stored_loaded_and_read_back(endpoint: IcebergEndpoint) -> None:
    """Damage: a value changes on its way into the table, or a key of some type is never found again."""
    spec = MaterializationSpec("m", (Binding("v", "t", tuple(ALL), EVERY),))
    world = World(endpoint, spec, {name: kind for name, (_, kind, _) in ALL.items()})
    full, empty = {name: value for name, (_, _, value) in ALL.items()}, dict.fromkeys(ALL)
    world.feeds[0].write(1, (full, 1), (empty, 1), ({**empty, "d": -0.0, "f": float("nan")}, 1))
    run(world, 3)
    world.check(3)
    world.feeds[0].write(4, (full, -1), (empty, -1), ({**full, "k": 2}, 1))
    run(world, 6)
    world.check(6)

    async def contents() -> list[Any]:
        read = await endpoint.driver().contents("m", spec.bindings[0])
        return [each async for each in read.tables]

    assert pa.concat_tables(asyncio.run(contents())).schema.types == [kind for _, kind, _ in ALL.values()]


def test_a_transaction_is_one_snapshot_that_names_it(endpoint: IcebergEndpoint) -> None:
    """Damage: a reader sees a transaction in two halves; or no one can tell which snapshot has which time."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, *(({"k": k, "x": "a"}, 1) for k in range(3)))
    run(world, 3)
    world.feeds[0].write(4, ({"k": 1, "x": "a"}, -1), ({"k": 1, "x": "b"}, 1), ({"k": 2, "x": "a"}, -1))
    run(world, 6)
    world.bump(1)
    run(world, 8)
    snapshots = endpoint.stored("t").snapshots()
    summaries = [each.summary for each in snapshots]
    assert [each["strandline-transaction"] for each in summaries if each is not None] == ["1", "2", "1"]
    assert [each["strandline-up-to"] for each in summaries if each is not None] == ["3", "6", "8"]
    counts = [endpoint.stored("t").scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in snapshots]
    assert counts == [3, 2, 2]


def test_a_table_that_only_grows_has_snapshots_that_append(endpoint: IcebergEndpoint) -> None:
    """Damage: who reads the table as a stream is refused, or skips rows."""
    world = World(endpoint, ADDED, TYPES)
    runtime = world.runtime()

    async def body() -> None:
        for number in range(4):
            world.feeds[0].write(world.upper, ({"k": number, "x": "a"}, 1))
            await advance_through(world, runtime, (world.upper + 2,))

    asyncio.run(body())
    operations = {each.summary.operation for each in endpoint.stored("t").snapshots() if each.summary is not None}
    assert operations == {Operation.APPEND}


def test_what_expires_and_what_others_rewrite_does_not_end_the_task(endpoint: IcebergEndpoint) -> None:
    """Damage: maintenance by others, which every Iceberg table needs, ends the task or doubles rows."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, *(({"k": k, "x": "a"}, 1) for k in range(3)))
    run(world, 3)
    stored = endpoint.stored("t")
    stored.overwrite(stored.scan().to_arrow())  # as a compaction does: the same rows in other files
    newest = endpoint.stored("t").current_snapshot()
    assert newest is not None
    old = [each.snapshot_id for each in endpoint.stored("t").snapshots() if each.snapshot_id != newest.snapshot_id]
    endpoint.stored("t").maintenance.expire_snapshots().by_ids(old).commit()
    world.feeds[0].write(4, ({"k": 1, "x": "a"}, -1), ({"k": 1, "x": "b"}, 1))
    run(world, 6)
    world.check(6)


def test_a_column_that_the_view_gains_is_added_in_place(endpoint: IcebergEndpoint) -> None:
    """Damage: the table is dropped, and with it its history and its readers' rights."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    wider = Schema((*ONE, Column("y.z", "smallint")))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), wider, incarnation="two"),))
    assert "added column 'y.z'" in asyncio.run(endpoint.driver().apply(spec, {})).action
    assert endpoint.rows("t") == [{"k": 1, "x": "a", "y.z": None}]
    other = World(endpoint, spec, {**TYPES, "y.z": pa.int16()})
    other.feeds[0].write(1, ({"k": 2, "x": "b", "y.z": 7}, 1))
    run(other, 3)
    other.check(3)


def test_other_columns_are_made_when_the_table_is_filled_from_the_start(endpoint: IcebergEndpoint) -> None:
    """Damage: a view whose column changes its type can never be stored again."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    changed = Schema((Column("k", "bigint"), Column("x", "date")))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), changed, backfill=1),))
    done = asyncio.run(endpoint.driver().apply(spec, {})).action
    assert done == "recreated table 't' for its new columns, to be filled from the start"
    other = World(endpoint, spec, {"k": pa.int64(), "x": pa.date32()})
    other.feeds[0].write(1, ({"k": 1, "x": date(2024, 1, 1)}, 1))
    run(other, 3)
    other.check(3)


def test_a_table_that_is_not_ours_is_not_touched_and_an_empty_one_is_adopted(endpoint: IcebergEndpoint) -> None:
    """Damage: a user's own table is emptied."""
    own = Stored(NestedField(1, "k", LongType()), NestedField(2, "x", StringType()))
    table = endpoint.catalog.create_table(("shop", "t"), own)
    done = asyncio.run(endpoint.driver().apply(SPEC, {})).action
    assert done == "adopted table 't', which is empty"
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    world.check(3)
    table = endpoint.catalog.create_table(("shop", "u"), own)
    table.append(pa.table({"k": [1], "x": ["mine"]}))
    with pytest.raises(DefinitionError, match="did not write"):
        asyncio.run(endpoint.driver().apply(MaterializationSpec("m", (Binding("v", "u", ("k",), ONE),)), {}))


def test_a_commit_that_pyiceberg_tries_again_by_itself_is_caught(
    endpoint: IcebergEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a library that rebases a commit stores a transaction a second time."""
    monkeypatch.setattr(table_module, "_once", Transaction)
    with pytest.raises((AssertionError, StrandlineError)):
        applied_while_a_successor_goes_on(endpoint.lake)


def test_a_catalog_must_be_named_and_no_secret_is_shown() -> None:
    """Damage: a table is looked for nowhere; or a token stands in a log."""
    with pytest.raises(DefinitionError, match="'catalog' is missing"):
        understood("m", IcebergEndpointOptions, {"namespace": "a"})
    given = {"catalog": "rest", "uri": "http://127.0.0.1:1", "token": "CANARY-7c1f", "namespace": "a"}
    options = understood("m", IcebergEndpointOptions, given, error=ConfigError)
    assert "CANARY" not in repr(options)
    assert "CANARY" not in repr(options.properties)
    binding = Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("i", "interval month"))))
    driver = KIND.open(options, None)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="'i'.*interval month"):
        require_all(
            MaterializationSpec("m", (binding,)),
            asyncio.run(driver.validate(MaterializationSpec("m", (binding,)))),
        )


@pytest.mark.server
def test_tables_of_a_rest_catalog_follow_their_collections(iceberg_server: IcebergServer) -> None:
    """Damage: what pyiceberg's own catalog accepts, a server refuses, or does not check."""
    asyncio.run(follow(served(iceberg_server)))
    asyncio.run(put_back(served(iceberg_server)))


@pytest.mark.server
def test_a_crash_beside_a_rest_catalog_loses_nothing(iceberg_server: IcebergServer) -> None:
    """Damage: a row is missing or duplicated after a restart."""
    world = World(served(iceberg_server))

    async def body() -> None:
        for at in range(3, 60, 8):
            await crash_once(world, CrashPlan(at))
            await crash_once(world, CrashPlan(at, after=True))

    asyncio.run(body())


@pytest.mark.server
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing_in_a_rest_catalog(scenario: Any, iceberg_server: IcebergServer) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(served(iceberg_server).lake)
