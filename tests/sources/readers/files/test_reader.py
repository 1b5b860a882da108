"""The files reader takes each file once, whole, and notices when one does not stay as it was."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import Counter
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.algebra.formats import Encoding
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import FencedError, SourceError
from strandline.frontier.gauge import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.persist.handles import records
from strandline.persist.handles.records import consolidate
from strandline.persist.shard.trace import FAN
from strandline.sources.readers.files import local_folder
from strandline.sources.readers.files.local_folder import LocalFolder, content_check
from strandline.sources.readers.files.options import FileOptions, OnDurable, root_and_pattern
from strandline.sources.readers.files.reader import NOTICES_MAX, PARTITION, FileReader
from strandline.sources.readers.files.sequence import FileSequence, FileVersion
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.lists.memory_folder import MemoryFolder
from strandline.testing.simulation.kernel import run_sync

SCHEMA = Schema((Column("file", "string"), Column("n", "bigint")))
NOW_MS = 1_700_000_000_000


class LineDecoder:
    """Decodes lines of numbers, in this process."""

    async def decode(self, files, schema, form, *, locate):
        rows = []
        for file in files:
            for number, line in enumerate(Path(file.path).read_text().splitlines()):
                try:
                    rows.append({"file": file.name, "n": int(line), TIME: file.time, DIFF: file.diff})
                except ValueError:
                    rows.append({ERROR: f"{file.name}:{number + 1}" if locate else "somewhere", TIME: file.time})
        return updates(schema, rows)


class Directory:
    """A directory, a location, and readers of them."""

    table = ""

    def __init__(self, root, **options):
        self.root, self.options, self.pattern = root / "in", {"format": "csv", **options}, ""
        self.root.mkdir()
        self.engine, self.blob, self.consensus = ListEngine(MemoryBlob()), MemoryBlob(), MemoryConsensus()
        self.clock, self.processes, self.numbers = HandClock(NOW_MS), count(), count()

    async def sequence(self, epoch=1):
        ids = CountingIds(f"p{next(self.processes)}")
        client = PersistClient(self.clock, ids, self.blob, self.consensus)
        return await FileSequence.open(await client.records("files", epoch), epoch)

    async def reader(self, epoch=1):
        options = understood("s", FileOptions, {"path": f"{self.root}{self.pattern}", **self.options})
        folder = LocalFolder(*root_and_pattern(options.path), self.clock)
        return FileReader(self.clock, folder, await self.sequence(epoch), LineDecoder(), SCHEMA, options)

    async def produce(self, *, undecodable=False):
        number = next(self.numbers)
        self.write(f"{number:03}.csv", f"{number}\n{'x' * undecodable}\n" if undecodable else f"{number}\n{number}\n")

    async def break_promise(self):
        self.write("000.csv", "another\n")

    def write(self, name, text="1\n", *, age_ms=60_000):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.touch(name, age_ms=age_ms)

    def touch(self, name, *, age_ms):
        modified_ns = (self.clock.now - age_ms) * 1_000_000
        os.utime(self.root / name, ns=(modified_ns, modified_ns))


@pytest.fixture
def place(tmp_path):
    """A directory of numbers."""
    return Directory(tmp_path)


def up_to(number):
    """The offsets that cover the first files."""
    return Offsets({PARTITION: number})


async def names(reader, number, *, start=0):
    """The files that are read for a range, in the order of the sequence."""
    rows = listed(await reader.read([Slice(7, up_to(start), up_to(number))], table="", locate=False)).rows
    return list(dict.fromkeys(row["file"] for row in rows))


class TestFileReader(ReaderContract):
    @pytest.fixture
    def place(self, place):
        return place


def test_files_of_one_probe_are_numbered_by_name_and_later_ones_after_them(place):
    """Damage: after a restart another file is number 3, so data are read twice and never."""

    async def body():
        reader = await place.reader()
        for name in ("b.csv", "a.csv", "sub/c.csv"):
            place.write(name)
        assert await reader.upstream_frontier() == up_to(3)
        place.write("aa.csv")
        assert await reader.upstream_frontier() == up_to(4)
        wanted = ["a.csv", "b.csv", "sub/c.csv", "aa.csv"]
        assert await names(reader, 4) == wanted
        assert await names(await place.reader(), 4) == wanted
        assert await names(reader, 3, start=1) == wanted[1:3]

    asyncio.run(body())


def test_two_instances_number_new_files_alike(place):
    """Damage: a file is read by both instances under two numbers."""

    async def body():
        first, second = await place.reader(), await place.reader()
        for name in ("a.csv", "b.csv"):
            place.write(name)
        assert await first.upstream_frontier() == up_to(2)
        place.write("0.csv")
        assert await second.upstream_frontier() == up_to(3)
        assert await names(first, 3) == await names(second, 3) == ["a.csv", "b.csv", "0.csv"]

    asyncio.run(body())


def test_a_race_for_numbers_gives_each_file_one(place):
    """Damage: two instances that see a new file at the same moment both number it."""

    async def body():
        first, second = await place.sequence(), await place.sequence()
        a, b, c = (FileVersion(name, 1, 1, 1) for name in "abc")
        await first.register([a, b])
        await second.register([c, b])
        await first.refresh()
        assert [first[i].name for i in range(len(first))] == ["a", "b", "c"]
        assert [second.number_of(name) for name in "abcd"] == [0, 1, 2, None]

    asyncio.run(body())


def test_following_a_sequence_goes_through_what_is_new(place, monkeypatch):
    """Damage: each file that another instance takes costs going through all files there ever were."""
    gone_through = []

    def counted(updates):
        given = list(updates)
        gone_through.append(len(given))
        return consolidate(given)

    monkeypatch.setattr(records, "consolidate", counted)

    async def body():
        writing, following = await place.sequence(), await place.sequence()
        total = 0
        for n in range(200):
            await writing.register([FileVersion(f"{n}", 1, 1, 1)])
            gone_through.clear()
            await following.refresh()
            total += sum(gone_through)
        assert [following[n].name for n in range(200)] == [f"{n}" for n in range(200)]
        assert total <= 200 * FAN, "what was merged meanwhile is gone through once more, and no more than that"

    asyncio.run(body())


def test_a_fenced_instance_numbers_nothing(place):
    """Damage: a zombie decides what its successor's offsets mean."""

    async def body():
        zombie, successor = await place.sequence(epoch=1), await place.sequence(epoch=2)
        with pytest.raises(FencedError):
            await zombie.register([FileVersion("a", 1, 1, 1)])
        await successor.refresh()
        assert len(successor) == 0

    asyncio.run(body())


@pytest.mark.parametrize(
    "name", [".a.csv", "_a.csv", "a.csv.tmp", "a.csv.part", ".a.csv.crc", "a.csv.crc", ".staging/a.csv", "_tmp/a.csv"]
)
def test_names_of_unfinished_files_are_passed_over(place, name):
    """Damage: a half-written file is ingested, and the rest of it never."""

    async def body():
        reader = await place.reader()
        place.write(name)
        assert await reader.upstream_frontier() == NOTHING_READ

    asyncio.run(body())


def test_a_file_is_taken_when_it_has_settled(place):
    """Damage: the first half of a file that is being written becomes the file."""

    async def body():
        reader = await place.reader()
        place.write("a.csv", age_ms=0)
        assert await reader.upstream_frontier() == NOTHING_READ
        assert reader.notices() == (
            "file 'a.csv' is not taken yet: it was modified less than 1000 ms ago, so its writer may go on",
        )
        place.clock.now += 999
        assert await reader.upstream_frontier() == NOTHING_READ
        place.clock.now += 1
        assert await reader.upstream_frontier() == up_to(1)
        assert reader.notices() == ()

    asyncio.run(body())


@pytest.mark.parametrize("text", ["1\n2", ""], ids=["cut", "empty"])
def test_text_that_does_not_end_in_a_newline_settles_ten_times_as_long(place, text):
    """Damage: a writer that paused inside a line has its line cut in two."""

    async def body():
        reader = await place.reader()
        place.write("a.csv", text, age_ms=9_999)
        assert await reader.upstream_frontier() == NOTHING_READ
        assert "does not end in a newline" in reader.notices()[0]
        place.clock.now += 1
        assert await reader.upstream_frontier() == up_to(1)

    asyncio.run(body())


def test_with_settle_zero_every_visible_file_is_complete(tmp_path):
    """Damage: files that a writer renames into place wait for nothing; a clock behind the writer's stops them."""
    place = Directory(tmp_path, settle="0")

    async def body():
        place.write("a.csv", "1", age_ms=-5_000)  # its writer's clock is ahead of ours
        assert await (await place.reader()).upstream_frontier() == up_to(1)

    asyncio.run(body())


def test_compressed_text_needs_no_newline(place):
    """Damage: compressed files wait ten times as long because their last byte is not a newline."""

    async def body():
        place.write("a.csv.gz", b"\x1f\x8b", age_ms=1_000)
        assert await (await place.reader()).upstream_frontier() == up_to(1)

    asyncio.run(body())


def test_parquet_is_taken_only_with_its_magic_at_both_ends(tmp_path):
    """Damage: a file without a footer fails every step from then on."""
    place = Directory(tmp_path, format="parquet")

    async def body():
        reader = await place.reader()
        whole = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [1]}), whole)
        data = whole.getvalue().to_pybytes()
        for name, content in {"a": data[:-1], "b": data[1:], "c": b"", "d": b"PAR1", "e": b"PAR1PAR1"}.items():
            place.write(f"{name}.parquet", content)
        assert await reader.upstream_frontier() == NOTHING_READ
        assert len(reader.notices()) == 5
        assert "not a whole Parquet file" in reader.notices()[0]
        place.write("f.parquet", data)
        assert await reader.upstream_frontier() == up_to(1)

    asyncio.run(body())


def test_only_some_waiting_files_are_named(place):
    """Damage: status prints ten thousand lines."""

    async def body():
        reader = await place.reader()
        for number in range(NOTICES_MAX + 3):
            place.write(f"{number}.csv", age_ms=0)
        await reader.upstream_frontier()
        assert len(reader.notices()) == NOTICES_MAX + 1
        assert reader.notices()[-1] == "and 3 more files"

    asyncio.run(body())


@pytest.mark.parametrize("durable", [False, True], ids=["before it is durable", "after"])
def test_a_file_that_changed_is_an_error_that_says_what_was_and_what_is(place, durable):
    """Damage: the collection differs from upstream, and no error reports it."""

    async def body():
        reader = await place.reader()
        place.write("a.csv", "1\n2\n")
        await reader.upstream_frontier()
        if durable:
            await reader.commit(up_to(1))
        place.write("a.csv", "1\n3\n4\n", age_ms=5_000)
        when = "after it was made durable" if durable else "before it was durable"
        with pytest.raises(SourceError, match=rf"'a\.csv' changed {when}.*4 bytes.*6 bytes"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_same_size_and_other_content_is_seen(place):
    """Damage: a corrected digit goes unnoticed."""

    async def body():
        reader = await place.reader()
        place.write("a.csv", "1\n2\n")
        await reader.upstream_frontier()
        place.write("a.csv", "1\n3\n", age_ms=5_000)
        with pytest.raises(SourceError, match="changed"):
            await names(reader, 1)

    asyncio.run(body())


def test_a_file_that_was_only_touched_is_the_same_file(place, monkeypatch):
    """Damage: a backup tool that restores modification times stops every source; or each probe reads the file again."""

    async def body():
        reader = await place.reader()
        place.write("a.csv", "1\n2\n")
        await reader.upstream_frontier()
        place.touch("a.csv", age_ms=5_000)
        assert await reader.upstream_frontier() == up_to(1)
        monkeypatch.setattr(local_folder, "content_check", None)
        assert await reader.upstream_frontier() == up_to(1)

    asyncio.run(body())


def test_a_vanished_file_is_an_error(place):
    """Damage: rows that upstream withdrew stay for ever, silently; or a step reads less than was bound."""

    async def body():
        reader = await place.reader()
        place.write("a.csv")
        place.write("b.csv")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        for name in ("b.csv", "a.csv"):
            (place.root / name).unlink()
            with pytest.raises(SourceError, match=rf"'{name}' vanished.*2 bytes"):
                await reader.upstream_frontier()
            place.write(name)

    asyncio.run(body())


def test_without_retain_a_durable_file_may_vanish_and_no_other(tmp_path):
    """Damage: a directory that is cleaned up stops the source; or no error reports a file that was never read."""
    place = Directory(tmp_path, retain="false")

    async def body():
        reader = await place.reader()
        assert reader.bounded
        for name in ("a.csv", "b.csv"):
            place.write(name)
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        (place.root / "a.csv").unlink()
        assert await reader.upstream_frontier() == up_to(2)
        (place.root / "b.csv").unlink()
        with pytest.raises(SourceError, match=r"'b\.csv' vanished before it was durable"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_without_retain_a_probe_costs_the_same_after_ten_thousand_files_that_are_gone():
    """Damage: a directory that is cleaned up makes each tick slower for ever, with every file that was ever read."""

    class Counting(FileSequence):
        asked = 0

        def __getitem__(self, number):
            self.asked += 1
            return super().__getitem__(number)

        def number_of(self, name):
            self.asked += 1
            return super().number_of(name)

    async def asked_after(gone):
        """Let so many files come, become durable and go; return what a probe that finds two more asks for."""
        client = PersistClient(HandClock(NOW_MS), CountingIds("p"), MemoryBlob(), MemoryConsensus())
        sequence = await Counting.open(await client.records("files", 1), 1)
        folder, options = MemoryFolder(), FileOptions(path="/in/*.csv", settle=0, retain=False)
        reader = FileReader(HandClock(NOW_MS), folder, sequence, LineDecoder(), SCHEMA, options)
        for number in range(gone):
            folder.write(f"{number}.csv", b"1\n", mtime_ms=NOW_MS)
        await reader.upstream_frontier()
        await reader.commit(up_to(gone))
        folder.files.clear()
        await reader.upstream_frontier()
        for name in ("x.csv", "y.csv"):
            folder.write(name, b"1\n", mtime_ms=NOW_MS)
        sequence.asked = 0
        folder.opened.clear()
        assert await reader.upstream_frontier() == up_to(gone + 2)
        assert reader._same.keys() <= {"x.csv", "y.csv"}
        return sequence.asked, len(folder.opened)

    assert run_sync(asked_after(10_000)) == run_sync(asked_after(10))


@pytest.mark.parametrize("restarted", [False, True], ids=["the same process", "another one"])
def test_without_retain_the_name_of_a_file_that_is_gone_stays_taken(tmp_path, restarted):
    """Damage: a file that is delivered twice counts twice; or another file takes the place of one that was read."""
    place = Directory(tmp_path, retain="false")

    async def body():
        reader = await place.reader()
        place.write("a.csv", "1\n2\n")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        (place.root / "a.csv").unlink()
        await reader.upstream_frontier()
        if restarted:
            reader = await place.reader()
            await reader.commit(up_to(1))
        place.write("a.csv", "1\n2\n", age_ms=4_000)
        assert await reader.upstream_frontier() == up_to(1)
        place.write("a.csv", "1\n3\n")
        with pytest.raises(SourceError, match=r"'a\.csv' changed after it was made durable"):
            await reader.upstream_frontier()

    asyncio.run(body())


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


def test_the_check_covers_the_whole_of_a_file_or_both_ends_of_a_large_one(tmp_path, monkeypatch):
    """Damage: a change at the end of a file is not seen."""
    path = tmp_path / "a"

    def checks(size):
        found = Counter()
        for changed in (None, 0, size // 2, size - 1):
            data = bytearray(size)
            if changed is not None:
                data[changed] = 1
            path.write_bytes(data)
            found[content_check(path, size)] += 1
        return sorted(found.values())

    assert checks(1000) == [1, 1, 1, 1]
    monkeypatch.setattr(local_folder, "CHECK_WHOLE_BYTES_MAX", 999)
    monkeypatch.setattr(local_folder, "CHECK_END_BYTES", 100)
    assert checks(1000) == [1, 1, 2]  # the middle of a large file is not summed


def numbered(*names):
    """Files of these names, as they were."""
    return [FileVersion(name, 1, 1, 1) for name in names]


def test_files_that_two_coroutines_number_at_once_have_one_number_each(tmp_path):
    """Damage: a file counts twice in this process, and each later one is read under the number of another."""

    async def body():
        shared = await Directory(tmp_path).sequence()
        append = shared._shard.append

        async def slow(*given):
            outcome = await append(*given)
            shared._shard.append = append
            await shared.register(numbered("b"))
            return outcome

        shared._shard.append = slow
        await shared.register(numbered("a"))
        assert [shared[number].name for number in range(len(shared))] == ["a", "b"]

    asyncio.run(body())


def test_a_file_that_was_numbered_while_the_sequence_was_read_has_one_number(tmp_path):
    """Damage: the same; or a sequence that is whole is called damaged."""

    async def body():
        place = Directory(tmp_path)
        other, shared = await place.sequence(), await place.sequence()
        await other.register(numbered("a"))
        contents = shared._shard.contents

        async def slow(**options):
            shared._shard.contents = contents
            await shared.register(numbered("b"))
            return await contents(**options)

        shared._shard.contents = slow
        await shared.refresh()
        assert [shared[number].name for number in range(len(shared))] == ["a", "b"]

    asyncio.run(body())


class Remembered:
    """A folder in memory, and readers of it that need neither files nor an event loop."""

    def __init__(self, place, **options):
        self.place, self.folder, self.options = place, MemoryFolder(), options

    def write(self, name, text, *, age_ms=60_000):
        self.folder.write(name, text.encode(), mtime_ms=self.place.clock.now - age_ms)

    async def reader(self):
        options = FileOptions(path="/in", format=Encoding.CSV, **self.options)
        folder, sequence = self.folder.again(), await self.place.sequence()
        return FileReader(self.place.clock, folder, sequence, LineDecoder(), SCHEMA, options)


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


def test_a_file_in_the_place_of_another_is_looked_into_though_size_and_time_are_the_same(place):
    """Damage: a tool that copies times with the bytes exchanges a file, and the collection is no longer upstream."""
    remembered = Remembered(place)

    async def body():
        reader = await remembered.reader()
        remembered.write("a.csv", "1\n")
        await reader.upstream_frontier()
        await reader.upstream_frontier()
        remembered.write("a.csv", "1\n")
        assert await reader.upstream_frontier() == up_to(1)
        remembered.write("a.csv", "2\n")
        with pytest.raises(SourceError, match="changed"):
            await reader.upstream_frontier()

    run_sync(body())


def test_what_another_instance_numbered_with_other_content_is_seen(place):
    """Damage: of two instances one believes its own checksum, and never reports a changed file."""
    remembered = Remembered(place)

    async def body():
        reader, other = await remembered.reader(), await remembered.reader()
        remembered.write("a.csv", "1\n")
        assert await other.upstream_frontier() == up_to(1)
        remembered.write("a.csv", "22\n")
        with pytest.raises(SourceError, match="changed"):
            await reader.upstream_frontier()

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


def test_a_file_that_is_written_in_place_is_noticed_when_its_turn_comes(place, monkeypatch):
    """Damage: of many files a changed one is never noticed; or it is forgotten once it was."""
    monkeypatch.setattr(MemoryFolder, "looks", 10)
    remembered = Remembered(place)

    async def body():
        reader = await remembered.reader()
        for number in range(95):
            remembered.write(f"{number:03}.csv", "1\n")
        await reader.upstream_frontier()
        data, stamp = remembered.folder.files["050.csv"]
        remembered.folder.files["050.csv"] = (b"22\n", stamp._replace(size=3))
        probes = 0
        with pytest.raises(SourceError, match="'050.csv' changed"):
            while probes <= 10:
                await reader.upstream_frontier()
                probes += 1
        assert probes >= 4, "nothing else shows it"
        for _ in range(2):
            with pytest.raises(SourceError, match="'050.csv' changed"):
                await reader.upstream_frontier()
        remembered.folder.files["050.csv"] = (data, stamp)
        assert await reader.upstream_frontier() == up_to(95)

    run_sync(body())


def test_a_file_that_was_gone_when_the_process_began_is_noticed(place):
    """Damage: a file that was deleted between two processes is never missed."""
    remembered = Remembered(place)

    async def body():
        reader = await remembered.reader()
        for name in ("a.csv", "b.csv"):
            remembered.write(name, "1\n")
        await reader.upstream_frontier()
        del remembered.folder.files["a.csv"]
        again = await remembered.reader()
        await again.commit(up_to(2))
        with pytest.raises(SourceError, match="'a.csv' vanished after"):
            await again.upstream_frontier()

    run_sync(body())


@pytest.mark.parametrize(
    "policy", [{"on_durable": OnDurable.DELETE}, {"on_durable": OnDurable.ARCHIVE, "archive": "/old"}]
)
def test_what_is_durable_leaves_and_nothing_else(place, policy):
    """Law R4.  Damage: a file that was not durable is gone; or a directory grows for ever."""
    remembered = Remembered(place, **policy)
    archive = policy.get("archive", "")

    async def body():
        reader = await remembered.reader()
        assert reader.bounded
        for name in ("a.csv", "b.csv", "c.csv"):
            remembered.write(name, "1\n")
        await reader.upstream_frontier()
        await reader.commit(NOTHING_READ)
        assert remembered.folder.left == []
        for _ in range(2):
            await reader.commit(up_to(2))
            assert remembered.folder.left == [("a.csv", archive), ("b.csv", archive)]
            assert await reader.upstream_frontier() == up_to(3)
        assert await names(reader, 3, start=2) == ["c.csv"]
        remembered.write("a.csv", "1\n")
        assert await reader.upstream_frontier() == up_to(3), "what comes back as it was is the same file"
        await reader.commit(up_to(2))
        assert remembered.folder.left[2:] == [("a.csv", archive)]
        remembered.write("b.csv", "2\n")
        await reader.commit(up_to(2))
        with pytest.raises(SourceError, match="'b.csv' changed after it was made durable"):
            await reader.upstream_frontier()
        await reader.commit(up_to(2))
        assert "b.csv" in remembered.folder.files, "what is not as it was stays"

    with_files = LineDecoder.decode
    try:
        LineDecoder.decode = _of_names
        run_sync(body())
    finally:
        LineDecoder.decode = with_files


async def _of_names(_, files, schema, form, *, locate):
    return updates(schema, [{"file": file.name, "n": 1, TIME: file.time, DIFF: file.diff} for file in files])


def test_a_crash_between_a_file_leaving_and_anything_else_is_harmless(tmp_path):
    """Damage: after a crash the archive lacks a file, or the source stands still because one is gone."""

    async def body(other_file_system):
        root = tmp_path / str(other_file_system)
        root.mkdir()
        place = Directory(root, on_durable="archive", archive=str(root / "old"))
        reader = await place.reader()
        for name in ("a.csv", "sub/b.csv"):
            place.write(name, f"{len(name)}\n")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        assert (root / "old/a.csv").read_text() == "5\n"
        assert not (place.root / "a.csv").exists()
        place.write("a.csv", "5\n")  # it was copied, and not yet removed
        (root / "old/a.csv.copying").write_text("torn")
        again = await place.reader()
        await again.commit(up_to(1))
        assert await again.upstream_frontier() == up_to(2)
        await again.commit(up_to(2))
        assert not (place.root / "a.csv").exists()
        assert not (place.root / "sub/b.csv").exists()
        assert (root / "old/a.csv").read_text() == "5\n"
        assert (root / "old/sub/b.csv").read_text() == "9\n"
        assert again.notices() == ()

    def refused(self, target):
        if self.name.endswith(".copying"):
            return replace(self, target)
        raise OSError(errno.EXDEV, "another file system")

    asyncio.run(body(False))
    replace = Path.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        asyncio.run(body(True))


def test_what_cannot_leave_is_reported_and_tried_again(tmp_path):
    """Damage: a directory grows for ever and no operator knows; or a source stands still for a file that is durable."""

    async def body():
        (tmp_path / "old").write_text("no directory")
        place = Directory(tmp_path, on_durable="archive", archive=str(tmp_path / "old"))
        reader = await place.reader()
        place.write("a.csv")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        assert reader.notices()[0].startswith("file 'a.csv' is durable and cannot be archived: ")
        assert await reader.upstream_frontier() == up_to(1)
        (tmp_path / "old").unlink()
        await reader.commit(up_to(1))
        assert reader.notices() == ()
        assert (tmp_path / "old/a.csv").exists()

    asyncio.run(body())
