"""What is Delta's own: types, tables that are there already, history, and rules that are not kept here."""

from __future__ import annotations

import asyncio
import json
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.driver import require_all
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.testing.contracts.drivers.world import World, advance_through

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
TYPES = {"k": pa.int64(), "x": pa.string()}


@pytest.fixture
def endpoint(tmp_path: Path) -> DeltaEndpoint:
    """An endpoint without a table."""
    return DeltaEndpoint(tmp_path)


def run(world: World, *uppers: int) -> None:
    """Advance a new runtime."""
    asyncio.run(advance_through(world, world.runtime(), uppers))


def apply(endpoint: DeltaEndpoint, spec: MaterializationSpec, state: Any = None) -> str:
    """Apply until the end; return what was done."""
    return asyncio.run(endpoint.driver().apply(spec, {} if state is None else state)).action


def test_every_type_is_stored_loaded_and_read_back(endpoint: DeltaEndpoint) -> None:
    """Damage: a value changes on its way into the table, or a key of some type is never found again."""
    spec = MaterializationSpec("m", (Binding("v", "t", tuple(ALL), EVERY),))
    world = World(endpoint, spec, {name: kind for name, (_, kind, _) in ALL.items()})
    full = {name: value for name, (_, _, value) in ALL.items()}
    empty = dict.fromkeys(ALL)
    world.feeds[0].write(1, (full, 1), (empty, 1), ({**empty, "d": -0.0, "f": float("nan")}, 1))
    run(world, 3)
    world.check(3)
    world.feeds[0].write(4, (full, -1), (empty, -1), ({**full, "k": 2}, 1))
    run(world, 6)
    world.check(6)
    found = {each["name"]: each["type"] for each in json.loads(endpoint.stored("t").schema().to_json())["fields"]}
    assert (found["i8"], found["k"], found["tn"]) == ("byte", "long", "timestamp_ntz")

    async def contents() -> list[Any]:
        read = await endpoint.driver().contents("m", spec.bindings[0])
        return [each async for each in read.tables]

    table = pa.concat_tables(asyncio.run(contents()))
    assert table.schema.types == [kind for _, kind, _ in ALL.values()]
    assert len(table) == len(endpoint.rows("t"))


def test_changes_are_added_with_their_times_and_diffs(endpoint: DeltaEndpoint) -> None:
    """Damage: who reads the changes cannot tell what came from what went, or when."""
    binding = Binding("v", "t", (), ONE, delta=True, times=True, diffs=True)
    world = World(endpoint, MaterializationSpec("m", (binding,)), TYPES)
    one, two = {"k": 1, "x": "a"}, {"k": 1, "x": "b"}
    world.feeds[0].write(1, (one, 1))
    run(world, 3)
    world.feeds[0].write(4, (one, -1), (two, 1))
    run(world, 6)
    found = sorted((each[TIME], each[DIFF], each["x"]) for each in endpoint.rows("t"))
    assert found == [(1, 1, "a"), (4, -1, "a"), (4, 1, "b")]
    history = endpoint.stored("t").history()
    assert all(each["operation"] == "WRITE" for each in history if "strandline.upto" in each)
    assert not [each for each in endpoint.actions("t") if "remove" in each], "who reads the log as a stream may do so"


def test_a_key_that_goes_is_said_to_be_gone(endpoint: DeltaEndpoint) -> None:
    """Damage: a table that is only added to keeps a key for ever, and no reader can know that it is gone."""
    binding = Binding("v", "t", ("k",), ONE, delta=True)
    world = World(endpoint, MaterializationSpec("m", (binding,)), TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    world.feeds[0].write(4, ({"k": 1, "x": "a"}, -1))
    run(world, 6)
    assert sorted((each["x"], each["__deleted"]) for each in endpoint.rows("t")) == [("a", False), ("a", True)]


def test_a_backfill_replaces_the_rows_in_one_commit(endpoint: DeltaEndpoint) -> None:
    """Damage: a reader sees an empty table, or rows of before and after at once."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, *(({"k": k, "x": "old"}, 1) for k in range(3)))
    run(world, 3)
    world.bump(1)
    before = endpoint.stored("t").version()
    world.feeds[0].write(4, ({"k": 9, "x": "new"}, 1))
    run(world, 6)
    now = endpoint.stored("t").version()
    counts = [
        DeltaTable(endpoint.stored("t").table_uri, version=each).to_pyarrow_table().num_rows
        for each in range(before, now + 1)
    ]
    assert set(counts[:-1]) == {3}
    assert counts[-1] == 4
    world.check(6)


def test_a_key_is_in_one_file_and_small_files_are_joined(endpoint: DeltaEndpoint) -> None:
    """Damage: each transaction leaves files behind, until a reader opens thousands of them."""
    world = World(endpoint, SPEC, TYPES)
    runtime = world.runtime()

    async def body() -> None:
        for number in range(80):
            world.feeds[0].write(world.upper, ({"k": number, "x": "a"}, 1))
            if number:
                old = {"k": number - 1, "x": "a"}
                world.feeds[0].write(world.upper, (old, -1), ({**old, "x": "b"}, 1))
            await advance_through(world, runtime, (world.upper + 2,))

    asyncio.run(body())
    world.check(world.upper)
    assert len(endpoint.stored("t").file_uris()) < 40


def test_an_empty_table_is_adopted_and_lacking_columns_are_added(endpoint: DeltaEndpoint) -> None:
    """Damage: a user who has made the table, with rights and comments, must drop it."""
    write_deltalake(f"{endpoint.root}/t", pa.table({"k": pa.array([], pa.int64())}))
    said = asyncio.run(endpoint.driver().preview(SPEC))
    done = apply(endpoint, SPEC)
    assert said == (done,) == ("added column 'x' to table 't'; adopted table 't', which is empty",)
    assert not apply(endpoint, SPEC)
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    world.check(3)


def test_a_column_that_the_view_gains_is_added_in_place(endpoint: DeltaEndpoint) -> None:
    """Damage: the table is dropped, and with it its history and its readers' rights."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    wider = Schema((*ONE, Column("y", "int")))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), wider, incarnation="two"),))
    assert "added column 'y'" in apply(endpoint, spec)
    assert endpoint.rows("t") == [{"k": 1, "x": "a", "y": None}]
    other = World(endpoint, spec, {**TYPES, "y": pa.int32()})
    other.feeds[0].write(1, ({"k": 2, "x": "b", "y": 7}, 1))
    run(other, 3)
    other.check(3)


def test_other_columns_are_made_when_the_table_is_filled_from_the_start(endpoint: DeltaEndpoint) -> None:
    """Damage: a view whose column changes its type can never be stored again."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    changed = Schema((Column("k", "bigint"), Column("x", "date")))
    with pytest.raises(DefinitionError, match="`x` string.*`x` date"):
        apply(endpoint, MaterializationSpec("m", (Binding("v", "t", ("k",), changed),)))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), changed, backfill=1),))
    assert apply(endpoint, spec) == "recreated table 't' for its new columns, to be filled from the start"
    other = World(endpoint, spec, {"k": pa.int64(), "x": pa.date32()})
    other.feeds[0].write(1, ({"k": 1, "x": date(2024, 1, 1)}, 1))
    run(other, 3)
    other.check(3)


@pytest.mark.parametrize(
    ("rows", "how", "said"),
    [
        ({"k": [1], "x": ["mine"]}, {}, "did not write"),
        ({"k": ["1"], "x": ["mine"]}, {}, "did not write"),
        ({"k": [1], "x": ["mine"]}, {"partition_by": ["x"]}, "partitions by x"),
        (
            {"k": [1], "x": ["mine"]},
            {"configuration": {"delta.enableDeletionVectors": "true"}},
            "the feature 'deletionVectors'",
        ),
        ({"k": [1], "x": ["mine"]}, {"configuration": {"delta.enableChangeDataFeed": "true"}}, "writers of version 4"),
        ({"k": [1], "x": ["mine"]}, {"configuration": {"delta.appendOnly": "true"}}, "delta.appendOnly"),
    ],
)
def test_a_table_that_is_not_ours_is_not_touched(
    rows: Mapping[str, Any], how: Mapping[str, Any], said: str, endpoint: DeltaEndpoint
) -> None:
    """Damage: a user's own table is emptied, or a rule of it is broken."""
    write_deltalake(f"{endpoint.root}/t", pa.table(rows), **how)
    before = endpoint.stored("t").version()
    with pytest.raises(DefinitionError, match=said):
        apply(endpoint, SPEC)
    assert endpoint.stored("t").version() == before


def test_a_table_of_another_task_is_not_taken(endpoint: DeltaEndpoint) -> None:
    """Damage: two tasks fill one table in turn."""
    apply(endpoint, SPEC)
    with pytest.raises(DefinitionError, match="filled by materialization 'm'"):
        apply(endpoint, replace(SPEC, name="other"))


def test_a_namesake_of_another_location_touches_nothing(endpoint: DeltaEndpoint) -> None:
    """Damage: two installations with a materialization of one name empty each other's table in turn."""
    here, there, again = (
        replace(SPEC, bindings=(replace(SPEC.bindings[0], incarnation=data),))
        for data in ("m-1@l-a", "m-1@l-b", "m-2@l-a")
    )
    apply(endpoint, here)
    with pytest.raises(
        DefinitionError, match="is filled by materialization 'm' of another location; drop the materialization"
    ):
        apply(endpoint, there)
    assert not asyncio.run(endpoint.driver().preview(here))
    apply(endpoint, again)
    assert not asyncio.run(endpoint.driver().preview(again))


def test_what_is_staged_is_applied_before_columns_change(endpoint: DeltaEndpoint) -> None:
    """Damage: files of a committed transaction do not fit the table when their turn comes."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    applied = endpoint.driver()
    entry = {"writer": "w", "number": 1, "work": _nothing_staged(world)}
    state = {"t.v0": entry}
    done = asyncio.run(applied.apply(SPEC, state))
    assert done.action == "applied what was staged for table 't'"
    assert done.state is not None
    assert done.state.apply(state) == {"t.v0": {"writer": "w", "number": 1}}
    assert endpoint.stored("t").transaction_version("w") == 1
    again = asyncio.run(applied.apply(SPEC, done.state.apply(state)))
    assert again.state is None


def test_what_is_staged_for_a_binding_that_is_gone_is_applied_or_dropped(endpoint: DeltaEndpoint) -> None:
    """Damage: a removed binding keeps the task from starting; or comes back with rows missing."""
    world = World(endpoint, SPEC, TYPES)
    run(world, 3)
    other = MaterializationSpec("m", (Binding("w", "u", ("k",), ONE),))
    entry = {"writer": "w", "number": 1, "work": _nothing_staged(world)}
    done = asyncio.run(endpoint.driver().apply(other, {"t.v0": entry}))
    assert done.action == "applied what was staged for table 't'"
    lost = {**entry, "work": {**_nothing_staged(world), "resource": "nowhere"}}
    done = asyncio.run(endpoint.driver().apply(other, {"nowhere.v0": lost}))
    assert done.state is not None
    assert done.state.updated == {"nowhere.v0": None}
    bumped = MaterializationSpec("m", (replace(SPEC.bindings[0], backfill=1),))
    done = asyncio.run(endpoint.driver().apply(bumped, {"t.v0": {**entry, "number": 9}}))
    assert done.state is not None, "what cannot be applied does not hinder the backfill that mends it"
    assert done.state.updated == {"t.v0": None}


def test_a_table_that_was_dropped_is_reported_and_a_backfill_fills_it_again(endpoint: DeltaEndpoint) -> None:
    """Damage: a table with only the newest changes in it looks like the whole."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    shutil.rmtree(Path(endpoint.root) / "t")
    world.feeds[0].write(5, ({"k": 3, "x": "c"}, 1))
    with pytest.raises(DefinitionError, match="is gone, though it was filled from 'v'.*backfill"):
        run(world, 7)
    world.bump(1)
    run(world, 9)
    world.check(9)


def test_rows_that_another_program_removed_are_noticed(endpoint: DeltaEndpoint) -> None:
    """Damage: the table is wrong, and stays so unnoticed."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    endpoint.stored("t").delete()
    world.feeds[0].write(4, ({"k": 1, "x": "a"}, -1))
    with pytest.raises(CorruptionError, match="another program changed the table"):
        run(world, 6)


def test_an_optimized_table_goes_on(endpoint: DeltaEndpoint) -> None:
    """Damage: maintenance by others, which every Delta table needs, ends the task."""
    world = World(endpoint, SPEC, TYPES)
    runtime = world.runtime()

    async def body() -> None:
        for k in range(4):
            world.feeds[0].write(world.upper, ({"k": k, "x": "a"}, 1))
            await advance_through(world, runtime, (world.upper + 2,))
        endpoint.stored("t").optimize.compact()
        endpoint.stored("t").vacuum(0, dry_run=False, enforce_retention_duration=False)
        world.feeds[0].write(world.upper, ({"k": 1, "x": "a"}, -1))
        await advance_through(world, runtime, (world.upper + 2,))

    asyncio.run(body())
    world.check(world.upper)


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        (Binding("v", "", ("k",), ONE), "empty"),
        (Binding("v", "\u00e4" * 128, ("k",), ONE), "too long"),
        (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("i", "interval month")))), "'i'.*interval month"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_made(
    binding: Binding, said: str, endpoint: DeltaEndpoint
) -> None:
    """Damage: the task fails later, in the middle of the night, with deltalake's own words."""
    spec = MaterializationSpec("m", (binding,))

    async def body() -> None:
        with pytest.raises(DefinitionError, match=said):
            require_all(spec, await endpoint.driver().validate(spec))

    asyncio.run(body())


def test_no_secret_is_shown() -> None:
    """Damage: a key of the object store stands in a log or a report."""
    secret = "CANARY-7c1f"
    storage = {"endpoint": "http://127.0.0.1:1", "region": "r", "access_key_id": "a", "secret_access_key": secret}
    endpoint = DeltaEndpoint("s3://bucket/x", storage=storage)
    shown = [repr(endpoint.options), repr(vars(endpoint.lake)), repr(endpoint.driver().__dict__)]
    try:
        apply(endpoint, SPEC)
    except Unavailable as error:
        shown += traceback.TracebackException.from_exception(error, capture_locals=True).format()
    assert len(shown) > 3
    assert not [text for text in shown if secret in text and "secret_access_key" not in text]


def test_a_table_whose_name_is_strange_is_one_directory(endpoint: DeltaEndpoint) -> None:
    """Damage: a name leads out of the endpoint's path."""
    spec = MaterializationSpec("m", (Binding("v", "../up", ("k",), ONE),))
    apply(endpoint, spec)
    assert [each.name for each in Path(endpoint.root).iterdir()] == ["!2e.!2fup"]


def _nothing_staged(world: World) -> dict[str, Any]:
    owner = json.dumps(["m", world.spec.bindings[0].state_key], separators=(",", ":"))
    work = {"owner": owner, "resource": "t", "key": ["k"], "directory": "d", "upto": 9, "pieces": [], "keys": []}
    return {**work, "replaces": False, "begin": 0, "end": 2**32 - 1}
