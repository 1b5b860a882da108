"""What is the manifests' own: who reads them, what they keep for how long, and texts."""

from __future__ import annotations

import asyncio
import json
import traceback
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from tests.materialize.drivers.files.files_endpoint import FilesEndpoint

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.driver import require_all
from strandline.materialize.drivers.staged import applying
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.testing.contracts.drivers.world import World, advance_through

ONE = Schema((Column("k", "bigint"), Column("x", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), ONE),))
ADDED = MaterializationSpec("m", (Binding("v", "t", (), ONE, delta=True),))
TYPES = {"k": pa.int64(), "x": pa.string()}
TEXTS = {
    "k": ("bigint", pa.int64(), -(2**63)),
    "b": ("boolean", pa.bool_(), False),
    "i8": ("tinyint", pa.int8(), -128),
    "f": ("float", pa.float32(), 1.401298464324817e-45),
    "d": ("double", pa.float64(), 0.1),
    "n": ("decimal(38,10)", pa.decimal128(38, 10), Decimal("-12345678901234567890.0123456789")),
    "s": ("string", pa.string(), 'a,"b"\n\r\n\U0001f30a'),
    "e": ("string", pa.string(), ""),
    "day": ("date", pa.date32(), date(1, 1, 1)),
    "t": ("timestamp", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, 4, ZoneInfo("UTC"))),
    "tn": ("timestamp_ntz", pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001 - it has none
}


@pytest.fixture
def endpoint(tmp_path: Path) -> FilesEndpoint:
    """An endpoint without a table."""
    return FilesEndpoint(tmp_path)


def run(world: World, *uppers: int) -> None:
    """Advance a new runtime."""
    asyncio.run(advance_through(world, world.runtime(), uppers))


def test_any_program_reads_the_files_of_the_newest_manifest(endpoint: FilesEndpoint) -> None:
    """Damage: the page says how a table is read, and it is another table."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1), ({"k": 2, "x": "b"}, 1))
    run(world, 3)
    world.feeds[0].write(4, ({"k": 1, "x": "a"}, -1), ({"k": 1, "x": "A"}, 1), ({"k": 3, "x": None}, 1))
    run(world, 6)
    directory = Path(endpoint.root) / "t"
    newest = max((directory / "manifest").glob("*.json"))
    manifest = json.loads(newest.read_text())
    files = [str(directory / each["name"]) for each in manifest["files"]]
    found = duckdb.read_parquet(files).order("k").fetchall()  # type: ignore[arg-type]
    assert found == [(1, "A"), (2, "b"), (3, None)]
    assert manifest["columns"] == [["k", "bigint"], ["x", "string"]]
    assert manifest["upto"] == 6
    assert sum(each["rows"] for each in manifest["files"]) == 3


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_every_value_is_read_back(form: str, tmp_path: Path) -> None:
    """Damage: a value changes on its way through a text, or NULL becomes an empty text."""
    schema = Schema(tuple(Column(name, kind) for name, (kind, _, _) in TEXTS.items()))
    endpoint = FilesEndpoint(tmp_path, options={"format": form})
    spec = MaterializationSpec("m", (Binding("v", "t", tuple(TEXTS), schema),))
    world = World(endpoint, spec, {name: kind for name, (_, kind, _) in TEXTS.items()})
    full, empty = {name: value for name, (_, _, value) in TEXTS.items()}, dict.fromkeys(TEXTS)
    odd = {**empty, "f": float("nan"), "d": float("-inf"), "s": "NULL", "e": "nan"}
    world.feeds[0].write(1, (full, 1), (empty, 1), (odd, 1))
    run(world, 3)
    world.check(3)
    world.feeds[0].write(4, (full, -1), (empty, -1), ({**odd, "s": "\\N"}, 1), (odd, -1))
    run(world, 6)
    world.check(6)
    assert {Path(each["name"]).suffix for each in (endpoint.manifest("t") or {})["files"]} == {f".{form}"}


@pytest.mark.parametrize(("form", "said"), [("csv", "array<int> has no text in CSV"), ("parquet", "")])
def test_what_has_no_text_is_refused_for_csv(form: str, said: str, tmp_path: Path) -> None:
    """Damage: a list is stored as a text that no program reads back."""
    schema = Schema((Column("k", "bigint"), Column("l", "array<int>")))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), schema),))
    verdicts = asyncio.run(FilesEndpoint(tmp_path, options={"format": form}).driver().validate(spec))
    if not said:
        require_all(spec, verdicts)
        return
    with pytest.raises(DefinitionError, match=said):
        require_all(spec, verdicts)


def test_files_stay_for_readers_of_an_older_manifest_until_the_retention_has_passed(endpoint: FilesEndpoint) -> None:
    """Damage: a reader's files vanish under it; or files that no reader needs stay for ever."""
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    directory, older = Path(endpoint.root) / "t", endpoint.manifest("t")
    assert older is not None
    change(world, "a", "b")
    endpoint.clock.now += endpoint.options.retention - 1
    change(world, "b", "c")
    assert all((directory / each["name"]).exists() for each in older["files"])
    assert (directory / f"manifest/{older['version']:020}.json").exists()
    endpoint.clock.now += 1
    change(world, "c", "d")
    assert not any((directory / each["name"]).exists() for each in older["files"])
    assert not (directory / f"manifest/{older['version']:020}.json").exists()
    endpoint.clock.now += endpoint.options.retention
    change(world, "d", "e")
    now = endpoint.manifest("t")
    assert now is not None
    endpoint.clock.now += endpoint.options.retention
    change(world, "e", "f")
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    newest = endpoint.manifest("t")
    assert newest is not None
    named = {each["name"] for each in newest["files"]} | {name for name, _ in newest["removed"]}
    assert left == {*named, f"manifest/{newest['version']:020}.json"}, "nothing is left that no manifest knows"


def change(world: World, old: str, new: str) -> None:
    """Give the row another value, in a transaction."""
    world.feeds[0].write(world.upper, ({"k": 1, "x": old}, -1), ({"k": 1, "x": new}, 1))
    run(world, world.upper + 2)


def test_a_writer_that_paused_beyond_the_retention_commits_nothing_unseen(tmp_path: Path) -> None:
    """Damage: its manifest has a number that was there before, no reader looks at it, and its rows are lost."""
    endpoint = FilesEndpoint(tmp_path, options={"retention": "0"})
    world = World(endpoint, SPEC, TYPES)
    world.feeds[0].write(1, ({"k": 1, "x": "a"}, 1))
    run(world, 3)
    table = endpoint.table("t")
    seen = table.snapshot("other")
    assert seen is not None
    for old, new in (("a", "b"), ("b", "c"), ("c", "d")):
        change(world, old, new)
    assert not table.commit(seen, applying.Change("other", 1, 9, (), ()))
    again = table.snapshot("other")
    assert again is not None
    assert again.reached == 0
    assert table.commit(again, applying.Change("other", 1, 9, (), ()))
    world.check(world.upper)


def test_a_table_that_only_grows_has_few_files_and_keeps_their_order(endpoint: FilesEndpoint) -> None:
    """Damage: a manifest names a file for each second of a year, and each commit writes all of it."""
    world = World(endpoint, ADDED, TYPES)
    runtime = world.runtime()

    async def body() -> None:
        for number in range(100):
            world.feeds[0].write(world.upper, ({"k": number, "x": "a"}, 1))
            await advance_through(world, runtime, (world.upper + 2,))

    asyncio.run(body())
    assert [each["k"] for each in endpoint.rows("t")] == list(range(100))
    assert len((endpoint.manifest("t") or {})["files"]) <= applying.SMALL_MAX + 1


def test_large_transactions_are_several_files(endpoint: FilesEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a first sync is one file, which a reader cannot read in parallel, or at all."""
    monkeypatch.setattr("strandline.materialize.drivers.staged.stage.PIECE_BYTES", 100)
    monkeypatch.setattr(applying, "PIECE_BYTES", 100)
    world = World(endpoint, SPEC, TYPES)
    rows = [{"k": k, "x": "x" * 20} for k in range(50)]
    world.feeds[0].write(1, *((each, 1) for each in rows))
    run(world, 3)
    assert len((endpoint.manifest("t") or {})["files"]) > 5
    world.feeds[0].write(4, *((each, -1) for each in rows[::2]))
    run(world, 6)
    world.check(6)


def test_a_manifest_that_is_none_is_named(endpoint: FilesEndpoint) -> None:
    """Damage: a damaged manifest is read as an empty table, and everything is stored once more."""
    world = World(endpoint, SPEC, TYPES)
    run(world, 3)
    newest = max((Path(endpoint.root) / "t/manifest").glob("*.json"))
    newest.write_text("{}")
    with pytest.raises(CorruptionError, match=f"{newest.name} is damaged"):
        run(world, 6)


def test_no_secret_is_shown() -> None:
    """Damage: a key of the object store stands in a log or a report."""
    secret = "CANARY-7c1f"
    options = {"endpoint": "http://127.0.0.1:1", "region": "r", "access_key_id": "a", "secret_access_key": secret}
    endpoint = FilesEndpoint("s3://bucket/x", options=options)
    shown = [repr(endpoint.options), repr(vars(endpoint.lake)), repr(endpoint.driver().__dict__)]
    try:
        asyncio.run(endpoint.driver().apply(SPEC, {}))
    except Unavailable as error:
        shown += traceback.TracebackException.from_exception(error, capture_locals=True).format()
    assert len(shown) > 3
    assert not [text for text in shown if secret in text and "secret_access_key" not in text]
