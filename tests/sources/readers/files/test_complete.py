"""Which files are complete, and what is said of the others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from strandline.options import understood
from strandline.sources.readers.files.complete import Completeness
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import FileOptions
from strandline.testing.doubles import HandClock


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
            r"file 'caf\udce9.csv' is not taken yet: its name is not UTF-8, so it cannot be written down: rename it"
        ]

    asyncio.run(body())
