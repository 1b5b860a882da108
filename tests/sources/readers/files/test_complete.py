"""The files reader takes a file when its writer has finished it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sources.readers.files.conftest import Directory, up_to

from strandline.options import understood
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import FileOptions
from strandline.sources.readers.files.reader import NOTICES_MAX
from strandline.sources.readers.files.sequence import Completeness
from strandline.sources.reclock import NOTHING_READ
from strandline.testing.doubles import HandClock

UNTAKEN = "it waits for file '{}', which is not taken yet: "


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
            f"{UNTAKEN.format('a.csv')}it was modified less than 1000 ms ago, so its writer may go on",
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


def test_avro_is_taken_when_it_has_settled_whatever_its_ends(tmp_path):
    """Damage: a source of Avro files reads nothing for ever, because they are no Parquet."""

    async def body():
        place = Directory(tmp_path, format="avro")
        reader = await place.reader()
        place.write("a.avro", "Obj and no magic")
        assert await reader.upstream_frontier() == up_to(1)
        assert reader.notices() == ()

    asyncio.run(body())


def test_only_some_waiting_files_are_named(place):
    """Damage: status prints ten thousand lines."""

    async def body():
        reader = await place.reader()
        for number in range(NOTICES_MAX + 3):
            place.write(f"{number}.csv", age_ms=0)
        await reader.upstream_frontier()
        assert len(reader.notices()) == NOTICES_MAX + 1
        assert reader.notices()[-1] == "it waits for 3 more files, which are not taken yet"

    asyncio.run(body())


def test_a_name_that_is_not_utf8_waits_and_the_others_are_taken(tmp_path: Path) -> None:
    """Damage: one file whose name came from an old system stops its source, and the reason names no file."""
    names = [os.fsdecode(b"caf\xe9.csv"), "café.csv"]
    for name in names:
        (tmp_path / name).write_text("1\n")
    clock = HandClock(1_700_000_000_000)
    folder = LocalFolder(tmp_path, "*", clock)
    options = understood("s", FileOptions, {"path": str(tmp_path), "format": "csv", "settle": "0"})

    async def body() -> None:
        completeness = Completeness(clock, folder, options)
        assert [file.name for file in await completeness.complete(await folder.look(names))] == ["café.csv"]
        assert completeness.waiting == [
            UNTAKEN.format(r"caf\udce9.csv") + "its name is not UTF-8, so it cannot be written down: rename it"
        ]

    asyncio.run(body())
