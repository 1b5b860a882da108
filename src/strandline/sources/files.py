"""The files reader: a directory that grows, of CSV, JSON lines or Parquet files.

A file is one message: it is taken once, whole, when it is complete, and must then stay as it is.  Offset n is the
n-th file of the durable sequence (`file_sequence.py`); files first seen by one probe are numbered in order of name.

*Complete*: its name is none that tools give to unfinished files; it has not been modified for the settle time (text
that does not end in a newline, or is empty: ten times that); Parquet has its magic at both ends.  What is left
waiting is told by `notices`.

*Stays as it is*: each probe compares size and modification time of every file with what was recorded, and the content
where those differ. A file that changed, or vanished, is a `SourceError` that stops the source, before it is durable
here (we could not read what we bound) and after (the collection would no longer be what is upstream).  With
``retain`` false a file may vanish once `commit` said that it is durable.

*Takes back*: the rows of files that ``retract`` names are withdrawn, one by one; a correction is such a file with the
rows as they were, and another with the rows as they are.  A row that was never there makes the collection negative at
that time, which is an error for whoever reads it.

Warns: a file that changes while its rows are being read, and keeps its size and modification time, cannot be told.

Source: design page "sources" (files).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from strandline.algebra.formats import DatedFile, FileFormat
from strandline.algebra.schema import Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier.gauge import Offsets
from strandline.persist.plane import Rows
from strandline.sources.file_options import FileOptions
from strandline.sources.file_sequence import FileSequence, FileVersion, content_check
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

PARTITION: Final = ""
"""All files are one partition: the sequence is their order."""
UNFINISHED_SETTLE_FACTOR: Final = 10
NOTICES_MAX: Final = 10
SMALL_BYTES_MAX: Final = 1 << 20
"""So few bytes of files are likely to be at most some ten thousand rows."""
_UNFINISHED_STARTS: Final = (".", "_")
_UNFINISHED_ENDS: Final = (".tmp", ".part", ".crc")
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_BYTES_MIN: Final = 12


class FileDecoder(Protocol):
    """Turns files into rows, on the data plane (implemented by the engine)."""

    async def decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        """Return the records of all files (lazy): as `SourceReader.read` says."""
        ...


class FileReader:
    """Reads one directory or glob.  See `SourceReader`."""

    def __init__(
        self, clock: Clock, sequence: FileSequence, decoder: FileDecoder, schema: Schema, options: FileOptions
    ) -> None:
        self._clock = clock
        self._sequence = sequence
        self._decoder = decoder
        self._schema = schema
        self._options = options
        self._durable = NOTHING_READ
        self._waiting: list[str] = []
        self._same: dict[
            str, tuple[int, int]
        ] = {}  # size and mtime under which a touched file was found to be the same

    @property
    def bounded(self) -> bool:
        """Files may be deleted once they are durable only where the definition says so."""
        return not self._options.retain

    async def upstream_frontier(self) -> Offsets:
        """Check the files known, number the new ones that are complete, and return how many there are."""
        listed = self._list()
        await self._sequence.refresh()
        for number in range(len(self._sequence)):
            self._check(number, listed.get(self._sequence[number].name))
        self._waiting = []
        complete = (
            self._examine(name, stat) for name, stat in listed.items() if self._sequence.number_of(name) is None
        )
        await self._sequence.register([file for file in complete if file is not None])
        return Offsets({PARTITION: len(self._sequence)})

    async def read(self, slices: Sequence[Slice], *, locate: bool) -> Rows:
        """Return the rows of the files of these slices; each is first compared with what was recorded."""
        files = []
        for each in slices:
            for number in range(each.lower[PARTITION], each.upper[PARTITION]):
                if number >= len(self._sequence):
                    await self._sequence.refresh()
                recorded = self._sequence[number]
                path = self._options.root / recorded.name
                self._check(number, _stat(path), reading=True)
                withdrawn = self._options.withdraws(recorded.name)
                files.append(DatedFile(str(path), recorded.name, recorded.size, each.time, withdrawn))
        return await self._decoder.decode(files, self._schema, self._options.format, locate=locate)

    async def commit(self, resume: Offsets) -> None:
        """Remember which files are durable; with ``retain`` false they may now be deleted."""
        self._durable = self._durable.join(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether the files of these slices have few bytes."""
        numbers = (n for each in slices for n in range(each.lower[PARTITION], each.upper[PARTITION]))
        return sum(self._sequence[number].size for number in numbers) <= SMALL_BYTES_MAX

    def notices(self) -> tuple[str, ...]:
        """Return which files were seen and not taken by the last probe, and why."""
        more = len(self._waiting) - NOTICES_MAX
        return (*self._waiting[:NOTICES_MAX], *([f"and {more} more files"] if more > 0 else []))

    def _list(self) -> dict[str, os.stat_result]:
        """Return the files there are, in order of name, without those whose names say that they are unfinished."""
        root = self._options.root
        if not root.is_dir():
            raise SourceError(f"directory {str(root)!r} is not there: create it, or mend the path of the source")
        try:
            return dict(self._walk(root))
        except OSError as error:
            raise Unavailable(f"directory {str(root)!r} cannot be listed: {error}") from error

    def _walk(self, root: Path) -> Iterator[tuple[str, os.stat_result]]:
        for name in sorted(set(glob.iglob(self._options.pattern, root_dir=root, recursive=True))):  # noqa: PTH207 - names relative to root
            parts = PurePosixPath(name).parts
            if any(part.startswith(_UNFINISHED_STARTS) for part in parts) or name.endswith(_UNFINISHED_ENDS):
                continue
            stat = _stat(root / name)
            if stat is not None:
                yield name, stat

    def _examine(self, name: str, stat: os.stat_result) -> FileVersion | None:
        """Return the file as it is if it is complete; else note why it waits."""
        path = self._options.root / name
        try:
            reason = self._unfinished(path, stat)
            if reason is None:
                check = content_check(path, stat.st_size)
                if _version(_stat(path)) == _version(stat):
                    return FileVersion(name, stat.st_size, stat.st_mtime_ns, check)
                reason = "it is being written"
        except OSError as error:
            reason = f"it cannot be read: {error.strerror}"
        self._waiting.append(f"file {name!r} is not taken yet: {reason}")
        return None

    def _unfinished(self, path: Path, stat: os.stat_result) -> str | None:
        age_ms = self._clock.now_ms() - stat.st_mtime_ns // 1_000_000
        settle_ms = self._options.settle_ms
        if settle_ms and age_ms < settle_ms:
            return f"it was modified less than {settle_ms} ms ago, so its writer may go on"
        with path.open("rb") as file:
            if not self._options.format.encoding.text:
                head = file.read(len(_PARQUET_MAGIC))
                file.seek(max(0, stat.st_size - len(_PARQUET_MAGIC)))
                whole = stat.st_size >= _PARQUET_BYTES_MIN and head == file.read() == _PARQUET_MAGIC
                return None if whole else "it is not a whole Parquet file"
            if not settle_ms or path.suffix in _COMPRESSED or age_ms >= settle_ms * UNFINISHED_SETTLE_FACTOR:
                return None
            file.seek(max(0, stat.st_size - 1))
            return None if file.read() in {b"\n", b"\r"} else "it does not end in a newline, so its writer may go on"

    def _check(self, number: int, stat: os.stat_result | None, *, reading: bool = False) -> None:
        """Raise `SourceError` unless the file is as recorded, or gone where it may be."""
        recorded = self._sequence[number]
        durable = self._durable.covers(PARTITION, number)
        when = "after it was made durable" if durable else "before it was durable here"
        if stat is None:
            if durable and not self._options.retain and not reading:
                return
            raise SourceError(
                f"file {recorded.name!r} vanished {when}: recorded were {recorded}; nothing is there now; put it back"
                + (", or define the source with retain = 'false'" if durable else "")
            )
        seen = _version(stat)
        if seen in {(recorded.size, recorded.mtime_ns), self._same.get(recorded.name)}:
            return
        try:
            check = content_check(self._options.root / recorded.name, stat.st_size)
        except OSError as error:
            raise Unavailable(f"file {recorded.name!r} cannot be read: {error.strerror}") from error
        now = FileVersion(recorded.name, stat.st_size, stat.st_mtime_ns, check)
        if (now.size, now.check) != (recorded.size, recorded.check):
            raise SourceError(
                f"file {recorded.name!r} changed {when}: recorded were {recorded}; there now are {now}; "
                "put the old content back, and give new content a name of its own"
            )
        self._same[recorded.name] = (stat.st_size, stat.st_mtime_ns)


def _stat(path: Path) -> os.stat_result | None:
    """Return the file's status, or None if no regular file is there."""
    try:
        return path.stat() if path.is_file() else None
    except FileNotFoundError:
        return None


def _version(stat: os.stat_result | None) -> tuple[int, int] | None:
    return None if stat is None else (stat.st_size, stat.st_mtime_ns)
