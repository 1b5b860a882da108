"""A directory of numbers, a location, and files readers of them."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from strandline.algebra.messages import Encoding
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import FileOptions, root_and_pattern
from strandline.sources.readers.files.reader import PARTITION, FileReader
from strandline.sources.readers.files.sequence import FileSequence
from strandline.sources.reclock import Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.lists.memory_folder import MemoryFolder

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
        return FileReader(self.clock, folder, await self.sequence(epoch), LineDecoder(), SCHEMA, options, name="s")

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


class Remembered:
    """A folder in memory, and readers of it that need neither files nor an event loop."""

    def __init__(self, place, **options):
        self.place, self.folder, self.options = place, MemoryFolder(), options

    def write(self, name, text, *, age_ms=60_000):
        self.folder.write(name, text.encode(), mtime_ms=self.place.clock.now - age_ms)

    async def reader(self):
        options = FileOptions(path="/in", format=Encoding.CSV, **self.options)
        folder, sequence = self.folder.again(), await self.place.sequence()
        return FileReader(self.place.clock, folder, sequence, LineDecoder(), SCHEMA, options, name="s")


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
