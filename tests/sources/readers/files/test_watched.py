"""The files reader notices when a file does not stay as it was taken."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.sources.readers.files.conftest import NOW_MS, SCHEMA, Directory, LineDecoder, Remembered, names, up_to

from strandline.errors import SourceError
from strandline.persist.client import PersistClient
from strandline.sources.readers.files import local_folder
from strandline.sources.readers.files.local_folder import content_check
from strandline.sources.readers.files.options import FileOptions
from strandline.sources.readers.files.reader import FileReader
from strandline.sources.readers.files.sequence import FileSequence
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.memory_folder import MemoryFolder
from strandline.testing.simulation.kernel import run_sync


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
        reader = FileReader(HandClock(NOW_MS), folder, sequence, LineDecoder(), SCHEMA, options, name="s")
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
