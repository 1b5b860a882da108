"""inspect, fsck, compact, gc and release, on a small real location: right reports, no change unasked."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3

import msgspec
import pytest

import strandline
from strandline.controller.location.catalog import KEY, Holder
from strandline.frontier import Frontier
from strandline.persist import PersistClient
from strandline.persist.handles.records import Record
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

pytestmark = pytest.mark.spark

INSERTS = 12
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def kept(place):
    """A location with a table that was written to a dozen times, in parts of its own each."""
    with strandline.open(f"file://{place.root}/data", spark=place.spark) as env:
        env.execute("CREATE TABLE orders (k STRING, n INT)")
        for number in range(INSERTS):
            frame = place.spark.range(3).selectExpr("repeat(uuid(), 400) AS k", f"CAST({number} AS INT) AS n")
            env.insert("orders", frame)
    return place


def everything(place):
    """A hash of every object and of every version."""
    with sqlite3.connect(place.root / "data" / "consensus.db") as connection:
        versions = connection.execute("SELECT * FROM versions ORDER BY key, seqno").fetchall()
    files = sorted(path for path in (place.root / "data" / "blob").rglob("*") if path.is_file())
    objects = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return objects, versions


def rows(place):
    """What the table holds."""
    said = place.run("query", "--json", "SELECT n, count(*) AS c FROM orders GROUP BY n ORDER BY n")
    return said.documents[0]["rows"]


def parts(place):
    """The table's part files."""
    return sorted((place.root / "data" / "blob").rglob("part-*.parquet"))


def test_looking_changes_nothing_and_says_what_is_there(kept):
    """Damage: a command that must only report repairs, and hides the damage."""
    before = everything(kept)
    shard = kept.run("inspect", "shard", "orders", "--json")
    assert shard.status == 0
    (found,) = shard.documents
    assert sum(batch["rows"] for batch in found["batches"]) == 3 * INSERTS
    assert "history" in {holder["name"] for holder in found["holders"]}
    assert (found["bytes"]["leaked"], found["upper"] > found["since"]) == (0, True)
    assert kept.run("inspect", "shard", found["shard"], "--json").documents == [found]
    assert f"version {found['seqno']}, versions kept {found['versions']}," in kept.run("inspect", "shard", "orders").out
    for command in ("fsck", "compact", "gc"):
        assert kept.run(command).status == 0
        (told,) = kept.run(command, "--json").documents
        assert told["found" if command == "fsck" else "shards"] is not None
    assert everything(kept) == before


def test_compacting_and_collecting_keep_every_row(kept):
    """Damage: maintenance by hand loses rows, or says it did what it did not."""
    before = rows(kept)
    (dry,) = kept.run("compact", "orders", "--json").documents
    (done,) = kept.run("compact", "orders", "--apply", "--json").documents
    assert [each["outcome"] for each in dry["shards"]] == ["due"]
    assert [(each["outcome"], each["batches_after"]) for each in done["shards"]] == [("merged", 1)]
    assert kept.run("compact", "orders", "--json").documents[0]["shards"] == []
    assert rows(kept) == before
    assert kept.run("gc", "--apply", "--json").status == 0
    assert rows(kept) == before
    (checked,) = kept.run("fsck", "--json").documents
    assert (checked["harmful"], checked["shards"] > 1, checked["parts"] > 0) == (0, True, True)


def test_a_damaged_a_missing_and_a_leaked_part_are_each_named(kept):
    """Damage: a check that finds nothing, or a repair that removes what is needed."""
    damaged, missing = parts(kept)[-2:]  # the newest: no merge has taken their place
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    missing.unlink()
    stray = kept.root / "data" / "blob" / "nobody" / "stray"
    stray.parent.mkdir()
    stray.write_bytes(b"?")
    said = kept.run("fsck", "--json")
    assert said.status == 3
    (told,) = said.documents
    by_key = {each["key"].rsplit("/", 1)[-1]: each["fault"] for each in told["found"]}
    assert by_key == {damaged.name: "damaged", missing.name: "dangling", "stray": "leaked"}
    assert {each["of"] for each in told["found"] if each["fault"] != "leaked"} == {"orders"}
    text = kept.run("fsck")
    assert text.status == 3
    assert missing.name in text.out
    assert "damaged in orders: part s-" in text.out
    asked = kept.run("query", "SELECT max(k) FROM orders")
    assert asked.status == 1
    assert asked.err.startswith("strandline: 'orders': part s-")
    assert asked.err.endswith("; `strandline fsck` lists all that is damaged or missing\n")


def test_what_was_leaked_long_ago_is_removed_when_asked_and_nothing_else_is(kept):
    """Damage: the leaks of a crash stay for ever, or a part that a writer is about to append is removed."""
    (directory,) = {part.parent.parent for part in parts(kept)}
    now_ms = SystemClock().now_ms()
    leaked, young = (directory / f"{now_ms - days * DAY_MS}-left" / "part-0.zstd.parquet" for days in (2, 0))
    for part in (leaked, young):
        part.parent.mkdir()
        part.write_bytes(parts(kept)[0].read_bytes())
    before, known = rows(kept), parts(kept)
    (dry,) = kept.run("fsck", "--json").documents
    assert ([each["fault"] for each in dry["found"]], dry["removed"]) == (["leaked"], [])
    assert parts(kept) == known
    (done,) = kept.run("fsck", "--apply", "--json").documents
    assert [key.split("/", 1)[-1] for key in done["removed"]] == [str(leaked.relative_to(directory.parent))]
    assert parts(kept) == known, "it is on a list, for a day"
    (listed,) = (directory.parent / "doomed").iterdir()
    assert str(leaked.relative_to(directory.parent)).encode() in listed.read_bytes()
    assert rows(kept) == before
    (again,) = kept.run("fsck", "--apply", "--json").documents
    assert (again["found"], again["removed"]) == ([], [])


def test_a_name_that_nothing_has_is_refused_with_candidates(kept):
    """Damage: a mistyped name inspects nothing, and looks healthy."""
    said = kept.run("inspect", "shard", "order")
    assert said.status == 1
    assert "did you mean 'orders'" in said.err


def hold(place, **changes):
    """Leave the location held, as a crash does."""
    with strandline.open(f"file://{place.root}/data", spark=place.spark) as env:
        holder = Holder("d", "elsewhere", 1, 0, 0, reentrant=False)
        changed = msgspec.structs.replace(holder, **changes)
        env._run(
            env._core.catalogs.change(env._core.catalog.epoch, lambda c: msgspec.structs.replace(c, holder=changed))
        )
        env._core.writing = None  # it never releases the location


def test_who_may_not_be_succeeded_is_released_by_an_operator_and_by_nothing_else(kept):
    """Damage: a deployment that needs an operator after a crash restarts by itself, or can never be restarted."""
    hold(kept)
    refused = kept.sql("INSERT INTO orders VALUES ('x', 99)")
    assert refused.status == 1
    assert "deployment 'd', process 1 on host 'elsewhere'" in refused.err
    assert "strandline release" in refused.err
    released = kept.run("release", "--json")
    assert released.documents == [{"released": "deployment 'd', process 1 on host 'elsewhere'"}]
    assert kept.sql("INSERT INTO orders VALUES ('x', 99)").status == 0
    assert kept.run("release", "--json").documents == [{"released": None}]


def test_a_holder_that_lives_is_not_released(kept):
    """Damage: an operator's habit fences a process that works."""
    with strandline.open(f"file://{kept.root}/data", spark=kept.spark):
        said = kept.run("release")
        assert said.status == 1
        assert f"process {os.getpid()}" in said.err
    assert KEY in dict.fromkeys(row[0] for row in everything(kept)[1])


RECORDS = 40


def neglect(place):
    """Write a shard of the location as a process that leaves the collecting to others."""
    consensus = SQLiteConsensus(place.root / "data" / "consensus.db")
    blob = FileBlob(place.root / "data" / "blob")

    async def body():
        client = PersistClient(SystemClock(), SystemIds(), blob, consensus, rollup_every=8, grace_ms=None)
        notes = await client.records("notes", 1)
        for number in range(RECORDS):
            await notes.append([Record(b"%d" % number, number, 1)], Frontier(number), Frontier(number + 1))

    asyncio.run(body())
    return consensus, blob


def test_gc_collects_garbage_on_request_and_nothing_else(kept):
    """Damage: garbage stays for ever; or gc reports deletes that it did not make, or deletes live data."""
    consensus, blob = neglect(kept)
    before = rows(kept)
    (dry,) = kept.run("gc", "--json").documents
    ((shard, versions, rollups),) = [(each["shard"], each["versions"], each["rollups"]) for each in dry["shards"]]
    assert shard == "notes"
    assert min(versions, rollups) > 0
    (done,) = kept.run("gc", "--apply", "--json").documents
    assert done == {"applied": True, "shards": dry["shards"]}
    assert kept.run("gc", "--json").documents == [{"applied": False, "shards": []}]
    assert rows(kept) == before

    async def read():
        notes = await PersistClient(SystemClock(), SystemIds(), blob, consensus).records("notes", 1)
        return {record.data for record in await notes.contents()}

    assert asyncio.run(read()) == {b"%d" % number for number in range(RECORDS)}
    consensus.close()
