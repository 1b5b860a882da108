"""The files reader takes each file once, whole, and a probe costs what is new."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from tests.sources.readers.files.conftest import Directory, Remembered, names, up_to

from strandline.algebra.schema import DIFF
from strandline.errors import SourceError
from strandline.sources.readers.files import local_folder
from strandline.sources.readers.files.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.memory_folder import MemoryFolder
from strandline.testing.simulation.kernel import run_sync


class TestFileReader(SharedReaderContract):
    @pytest.fixture
    def place(self, place):
        return place


def test_a_missing_directory_is_named(place):
    """Damage: a mistyped path is an empty source for ever."""

    async def body():
        reader = await place.reader()
        place.root.rmdir()
        with pytest.raises(SourceError, match="in' does not exist"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_a_glob_and_a_single_file_can_be_named(place):
    """Damage: what lies beside the data becomes data."""

    async def body():
        for name in ("a.csv", "b.csv", "readme.txt", "sub/c.csv", "odd[1].csv"):
            place.write(name)
        found = {}
        for pattern in ("/*.csv", "/**/*.csv", "/s*/*.csv", "/a.csv", "/odd[1].csv"):
            here = Directory.__new__(Directory)
            vars(here).update(vars(place), pattern=pattern, consensus=MemoryConsensus(), blob=MemoryBlob())
            reader = await here.reader()
            found[pattern] = await names(reader, (await reader.upstream_frontier())[PARTITION])
        assert found == {
            "/*.csv": ["a.csv", "b.csv", "odd[1].csv"],
            "/**/*.csv": ["a.csv", "b.csv", "odd[1].csv", "sub/c.csv"],
            "/s*/*.csv": ["sub/c.csv"],
            "/a.csv": ["a.csv"],
            "/odd[1].csv": ["odd[1].csv"],
        }

    asyncio.run(body())


def test_files_that_retract_names_are_withdrawn(tmp_path):
    """Damage: rows that upstream took back stay, or others vanish."""

    async def body():
        place = Directory(tmp_path, retract="*.retract.csv")
        for name in ("a.csv", "a.retract.csv", "b.retract.csv.csv", "x.retract.csv/c.csv"):
            place.write(name)
        reader = await place.reader()
        assert await reader.upstream_frontier() == up_to(4)
        rows = listed(await reader.read([Slice(7, up_to(0), up_to(4))], table="", locate=False)).rows
        assert {row["file"]: row[DIFF] for row in rows} == {
            "a.csv": 1,
            "a.retract.csv": -1,
            "b.retract.csv.csv": 1,
            "x.retract.csv/c.csv": 1,
        }

    asyncio.run(body())


def test_small_files_are_likely_few_rows(place):
    """Damage: every small step pays for a write by Spark, or a large one is collected."""

    async def body():
        reader = await place.reader()
        place.write("a.csv")
        place.write("b.csv", "1\n" * 600_000)
        await reader.upstream_frontier()
        assert reader.likely_small([Slice(7, NOTHING_READ, up_to(1))])
        assert not reader.likely_small([Slice(7, NOTHING_READ, up_to(2))])

    asyncio.run(body())


def test_a_probe_opens_what_is_new_or_touched_and_nothing_else(place):
    """Damage: each tick reads every file that was ever taken, and the hundred that wait."""
    remembered = Remembered(place)

    async def body():
        reader = await remembered.reader()
        for number in range(3):
            remembered.write(f"{number}.csv", f"{number}\n")
        remembered.write("waits.csv", "3", age_ms=2_000)
        assert await reader.upstream_frontier() == up_to(3)
        assert sorted(set(remembered.folder.opened)) == ["0.csv", "1.csv", "2.csv", "waits.csv"]
        remembered.folder.opened.clear()
        for _ in range(5):
            assert await reader.upstream_frontier() == up_to(3)
            assert "does not end in a newline" in reader.notices()[0]
        assert remembered.folder.opened == []
        again = await remembered.reader()
        assert await again.upstream_frontier() == up_to(3)
        assert remembered.folder.opened == ["waits.csv"], "after a restart sizes and times are compared"
        remembered.write("waits.csv", "3\n", age_ms=1_500)
        assert await reader.upstream_frontier() == up_to(4)

    run_sync(body())


def test_no_call_on_the_file_system_runs_on_the_event_loop(place, monkeypatch):
    """Damage: a slow directory stops every other source, view and endpoint, and the heartbeats of leases."""
    loop, used = threading.get_ident(), Counter()

    def watched(name):
        inner = getattr(local_folder, name)

        def call(*args, **options):
            used[name, threading.get_ident() == loop] += 1
            return inner(*args, **options)

        return call

    for name in ("_stamp", "_ends", "content_check"):
        monkeypatch.setattr(local_folder, name, watched(name))

    async def body():
        reader = await place.reader()
        place.write("a.csv", age_ms=2_000)
        assert await reader.upstream_frontier() == up_to(1)
        place.touch("a.csv", age_ms=1_500)
        assert await reader.upstream_frontier() == up_to(1)
        assert await names(reader, 1) == ["a.csv"]

    asyncio.run(body())
    assert {name for name, _ in used} == {"_stamp", "_ends", "content_check"}
    assert not [name for name, on_loop in used if on_loop]


def test_a_quiet_probe_costs_the_same_however_many_files_were_taken(place, monkeypatch):
    """Damage: each tick of a source is slower for ever, with every file that was ever taken."""

    async def cost(files):
        remembered = Remembered(Directory.__new__(Directory))
        vars(remembered.place).update(vars(place), consensus=MemoryConsensus(), blob=MemoryBlob())
        reader, sequence = await remembered.reader(), None
        for number in range(files):
            remembered.write(f"{number}.csv", "1\n")
        await reader.upstream_frontier()
        await reader.upstream_frontier()
        remembered.folder.looked.clear()
        remembered.folder.opened.clear()
        sequence, asked = reader._sequence, Counter()
        inner = type(sequence).__getitem__
        monkeypatch.setattr(type(sequence), "__getitem__", lambda s, n: asked.update(["asked"]) or inner(s, n))
        assert await reader.upstream_frontier() == up_to(files)
        monkeypatch.undo()
        return len(remembered.folder.looked), len(remembered.folder.opened), asked["asked"]

    assert run_sync(cost(20_000)) == run_sync(cost(2_000)) == (MemoryFolder.looks, 0, 2 * MemoryFolder.looks)
