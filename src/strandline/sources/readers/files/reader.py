"""The files reader: a directory that grows, of CSV, JSON lines or Parquet files.

A file is one message: it is taken once, whole, when it is complete, and must then stay as it is.  Offset n is the
n-th file of the durable sequence (`sequence.py`); files first seen by one probe are numbered in order of name.

*Complete*: its name is none that tools give to unfinished files; it has not been modified for the settle time (text
that does not end in a newline, or is empty: ten times that); Parquet has its magic at both ends.  `notices` reports
the files that wait.

*Stays as it is*: each probe compares size and modification time of every file with what was recorded, and its stamp
with the one last seen; only the content of a file where these differ is read again.  A file that changed, or
vanished, is a `SourceError` that stops the source, before it is durable here (we could not read what we bound) and
after (the collection would no longer be what is upstream).  With ``retain`` false a file may vanish once `commit` said
that it is durable; a probe then costs what is there, however many files have gone.  Its name stays taken: if it comes
back as it was, it is the same file and is not read again.

*Takes back*: the rows of files that ``retract`` names are withdrawn, one by one; a correction is such a file with the
rows as they were, and another with the rows as they are.  A row that was never there makes the collection negative at
that time, which is an error for every reader.  A record that could not be decoded is taken back in the same way, by
its text as it was: its error leaves.

Whatever touches the file system is asked of a `Folder`, which keeps it off the event loop.

Warns: a file that changes while its rows are being read, and keeps its size and modification time, is not detected.

Source: design page "sources" (files).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import Final

from strandline.algebra.formats import DatedFile
from strandline.algebra.schema import Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.plane import Rows
from strandline.sources.reader import FileDecoder, Plain, ReaderKind, Records, Surroundings, TakenBack
from strandline.sources.readers.files.folder import Checked, Ends, Folder, Stamp
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import COMPRESSED, FileOptions, root_and_pattern
from strandline.sources.readers.files.sequence import FileSequence, FileVersion
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
_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_BYTES_MIN: Final = 12


class FileReader:
    """Reads one directory or glob.  See `SourceReader`."""

    def __init__(
        self,
        clock: Clock,
        folder: Folder,
        sequence: FileSequence,
        decoder: FileDecoder,
        schema: Schema,
        options: FileOptions,
    ) -> None:
        self._clock = clock
        self._folder = folder
        self._sequence = sequence
        self._decoder = decoder
        self._schema = schema
        self._options = options
        self._durable = NOTHING_READ
        self._waiting: list[str] = []
        self._same: dict[str, Stamp] = {}  # of files known to be as recorded
        self._ends: dict[str, tuple[Stamp, Ends]] = {}  # of files that wait

    @property
    def bounded(self) -> bool:
        """Files may be deleted once they are durable only where the definition says so."""
        return not self._options.retain

    def records(self, table: str) -> Records:
        """Return that rows are taken back where the names of some files say so."""
        return TakenBack() if self._options.retract else Plain()

    async def snapshot(self, table: str) -> Offsets | None:
        """Return None: all files are read by their numbers."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """Check the files known, number the new ones that are complete, and return how many there are."""
        listed = await self._listed()
        self._same = {name: stamp for name, stamp in self._same.items() if name in listed}
        await self._sequence.refresh()
        await self._check(self._due(listed), listed)
        new = {name: stamp for name, stamp in listed.items() if self._sequence.number_of(name) is None}
        await self._sequence.register(await self._complete(new))
        return Offsets({PARTITION: len(self._sequence)})

    def _due(self, listed: Mapping[str, Stamp]) -> Iterable[int]:
        """Return the numbers that a probe looks at: of the files that are there, and of those that must be."""
        if self._options.retain:
            return range(len(self._sequence))
        first = self._durable[PARTITION]
        there = (self._sequence.number_of(name) for name in listed)
        return chain((n for n in there if n is not None and n < first), range(first, len(self._sequence)))

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the rows of the files of these slices; each is first compared with what was recorded."""
        wanted = [(n, each.time) for each in slices for n in range(each.lower[PARTITION], each.upper[PARTITION])]
        if any(number >= len(self._sequence) for number, _ in wanted):
            await self._sequence.refresh()
        names = [self._sequence[number].name for number, _ in wanted]
        await self._check((number for number, _ in wanted), await self._folder.look(names), reading=True)
        files = []
        for number, time in wanted:
            recorded, withdrawn = self._sequence[number], self._options.withdraws(self._sequence[number].name)
            path = f"{self._folder.root}/{recorded.name}"
            files.append(DatedFile(path, recorded.name, recorded.size, time, withdrawn))
        return await self._decoder.decode(files, self._schema, self._options.decoding, locate=locate)

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

    async def close(self) -> None:
        """Nothing is open between calls."""

    async def _listed(self) -> dict[str, Stamp]:
        """Return the files there are, in order of name, without those whose names say that they are unfinished."""
        root = self._folder.root
        try:
            found = await self._folder.list()
        except NotADirectoryError as error:
            raise SourceError(f"directory {root!r} does not exist: create it, or correct the source's path") from error
        except OSError as error:
            raise Unavailable(f"directory {root!r} cannot be listed: {error}") from error
        return {name: stamp for name, stamp in found.items() if not _is_unfinished(name)}

    async def _complete(self, listed: Mapping[str, Stamp]) -> list[FileVersion]:
        """Return those of the files that are complete, in their order; note why the others wait."""
        waiting = {name: self._unsettled(stamp) for name, stamp in listed.items()}
        settled = {name: stamp for name, stamp in listed.items() if not waiting[name]}
        waiting |= await self._unfinished(settled)
        wanted = {name: stamp for name, stamp in listed.items() if not waiting[name]}
        found = []
        for name, checked in (await self._checked(wanted)).items():
            match checked:
                case OSError():
                    waiting[name] = f"it cannot be read: {checked.strerror}"
                case Checked(check, stamp) if stamp == wanted[name]:
                    found.append(FileVersion(name, stamp.size, stamp.mtime_ns, check))
                case Checked():
                    waiting[name] = "it is being written"
        self._waiting = [f"file {name!r} is not taken yet: {why}" for name, why in waiting.items() if why]
        return found

    async def _unfinished(self, settled: Mapping[str, Stamp]) -> dict[str, str]:
        """Return why files wait as far as their ends show, else nothing; an end is read once for each stamp."""
        self._ends = {name: known for name, known in self._ends.items() if known[0] == settled.get(name)}
        sizes = {
            name: stamp.size
            for name, stamp in settled.items()
            if name not in self._ends and self._is_told_by_ends(name, stamp)
        }
        found = await self._folder.ends(sizes) if sizes else {}
        self._ends |= {name: (settled[name], ends) for name, ends in found.items() if not isinstance(ends, OSError)}
        unreadable = {name: error for name, error in found.items() if isinstance(error, OSError)}
        return {
            name: f"it cannot be read: {unreadable[name].strerror}"
            if name in unreadable
            else self._cut_off(stamp, self._ends[name][1])
            if self._is_told_by_ends(name, stamp)
            else ""
            for name, stamp in settled.items()
        }

    def _unsettled(self, stamp: Stamp) -> str:
        settle_ms = self._options.settle
        if settle_ms and self._age_ms(stamp) < settle_ms:
            return f"it was modified less than {settle_ms} ms ago, so its writer may go on"
        return ""

    def _is_told_by_ends(self, name: str, stamp: Stamp) -> bool:
        """Whether the ends of a settled file say something about its being complete."""
        if not self._options.encoding.text:
            return True
        settle_ms = self._options.settle
        if not settle_ms or PurePosixPath(name).suffix in COMPRESSED:
            return False
        return self._age_ms(stamp) < settle_ms * UNFINISHED_SETTLE_FACTOR

    def _cut_off(self, stamp: Stamp, ends: Ends) -> str:
        if self._options.encoding.text:
            ended = ends.tail[-1:] in {b"\n", b"\r"}
            return "" if ended else "it does not end in a newline, so its writer may go on"
        whole = stamp.size >= _PARQUET_BYTES_MIN and ends.head == ends.tail == _PARQUET_MAGIC
        return "" if whole else "it is not a whole Parquet file"

    def _age_ms(self, stamp: Stamp) -> int:
        return self._clock.now_ms() - stamp.mtime_ns // 1_000_000

    async def _check(self, numbers: Iterable[int], seen: Mapping[str, Stamp], *, reading: bool = False) -> None:
        """Raise `SourceError` unless each file is as recorded, or gone where it may be; open only what was touched."""
        touched: dict[str, tuple[int, Stamp]] = {}
        for number in numbers:
            recorded = self._sequence[number]
            stamp = seen.get(recorded.name)
            if stamp is None:
                self._allow_absence(number, reading=reading)
            elif recorded.name not in self._same and stamp[:2] == (recorded.size, recorded.mtime_ns):
                self._same[recorded.name] = stamp
            elif stamp != self._same.get(recorded.name):
                touched[recorded.name] = (number, stamp)
        checks = await self._checked({name: stamp for name, (_, stamp) in touched.items()})
        for name, (number, stamp) in touched.items():
            checked = checks[name]
            if isinstance(checked, OSError):
                raise Unavailable(f"file {name!r} cannot be read: {checked.strerror}") from checked
            recorded = self._sequence[number]
            now = FileVersion(name, stamp.size, stamp.mtime_ns, checked.check)
            if (now.size, now.check) != (recorded.size, recorded.check):
                raise SourceError(
                    f"file {name!r} changed {self._when(number)}: recorded were {recorded}; there now are {now}; "
                    "put the old content back, and give new content a name of its own"
                )
            self._same[name] = stamp

    def _allow_absence(self, number: int, *, reading: bool) -> None:
        recorded, durable = self._sequence[number], self._durable.covers(PARTITION, number)
        if durable and not self._options.retain and not reading:
            return
        raise SourceError(
            f"file {recorded.name!r} vanished {self._when(number)}: recorded were {recorded}; it does not exist now; "
            "put it back" + (", or define the source with retain = 'false'" if durable else "")
        )

    def _when(self, number: int) -> str:
        durable = self._durable.covers(PARTITION, number)
        return "after it was made durable" if durable else "before it was durable here"

    async def _checked(self, wanted: Mapping[str, Stamp]) -> dict[str, Checked | OSError]:
        if not wanted:
            return {}
        return await self._folder.check({name: stamp.size for name, stamp in wanted.items()})


def _is_unfinished(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(_UNFINISHED_STARTS) for part in parts) or name.endswith(_UNFINISHED_ENDS)


async def _open(options: FileOptions, given: Surroundings) -> FileReader:
    root, pattern = root_and_pattern(options.path)
    sequence = await FileSequence.open(await given.progress(), given.epoch)
    return FileReader(given.clock, LocalFolder(root, pattern), sequence, given.decoder, given.schema, options)


KIND: Final = ReaderKind("files", FileOptions, _open)
