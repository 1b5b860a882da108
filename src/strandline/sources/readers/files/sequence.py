"""The durable sequence of a files source: which files are complete, their order, and what a probe looks at.

A directory has no order of its own that lasts: names sort, but a later file may have an earlier name; modification
times tie, and tools set them at will.  So the order in which files are first seen is written down, one record per file,
before any binding may cover it; offset n of the source is the n-th file of the sequence, for ever.  In the record shard
a file's number is its time, so the shard's upper is the next number, and two instances that see a new file at once
cannot both number it.

Each record holds the file's size, modification time and a checksum of its content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import PurePosixPath
from typing import Final, NotRequired, TypedDict

import msgspec

from strandline.algebra.messages import Encoding
from strandline.errors import WAITS, CorruptionError
from strandline.frontier import Frontier
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.problem import Problem, Stopped
from strandline.sources.readers.files.folder import Checked, Ends, Folder, Listing, Stamp
from strandline.sources.readers.files.options import COMPRESSED, UNSEEN, FileOptions
from strandline.store.clock import Clock


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """One file as it was: ``name`` is relative to the source's root, ``check`` its checksum (`Folder.check`)."""

    name: str
    size: int
    mtime_ns: int
    check: int

    @property
    def stamp(self) -> tuple[int, int]:
        """What a `Stamp` has of it."""
        return self.size, self.mtime_ns

    def __str__(self) -> str:
        modified = datetime.fromtimestamp(self.mtime_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        return f"{self.size} bytes, modified {modified}, checksum {self.check:08x}"


class PassedOver(TypedDict):
    """A note in the place of a file: the file of this number is passed over; ``withdrawn``: and its rows are gone.

    An operator passes over a file that is gone or was changed for good.  The note takes a number and has no rows; from
    then on the file is neither read nor looked at, and those rows of it that are durable stay.
    """

    passed_over: int
    withdrawn: NotRequired[bool]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(FileVersion | PassedOver)


class FileSequence:
    """The files of one source by number, as last seen, and the way to add more.  Opened by `open`."""

    def __init__(self, shard: RecordShard, epoch: int) -> None:
        self._shard = shard
        self._epoch = epoch
        self._files: list[FileVersion | None] = []  # None: a note has this number
        self._numbers: dict[str, int] = {}
        self.passed_over: set[int] = set()
        """The numbers of the files that are passed over."""
        self.kept: set[int] = set()
        """Those of them whose rows are not withdrawn."""

    @classmethod
    async def open(cls, shard: RecordShard, epoch: int) -> FileSequence:
        """Return the sequence kept in ``shard`` (opened under ``epoch``)."""
        opened = cls(shard, epoch)
        await opened.refresh()
        return opened

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> FileVersion:
        """Return the file that has a number.  Raises `LookupError` if none has it: ask `is_file`."""
        if (file := self._files[number]) is None:
            raise LookupError(f"number {number} of file sequence {self._shard.shard!r} is a note's")
        return file

    def is_file(self, number: int) -> bool:
        """Return whether a number is of a file that is to be read and looked at: no note, and not passed over."""
        return self._files[number] is not None and number not in self.passed_over

    def number_of(self, name: str) -> int | None:
        """Return the number of the file called ``name``, or None if it has none."""
        return self._numbers.get(name)

    async def refresh(self) -> None:
        """Fetch what others registered; what is known here is not read again."""
        await self._shard.refresh()
        upper, known = self._shard.upper.at, len(self._files)
        if upper == known:
            return
        records = await self._shard.contents(lower=Frontier(known))
        numbers = [record.time for record in records]
        if upper is None or numbers != list(range(known, known + len(records))) or upper > known + len(records):
            raise CorruptionError(f"file sequence {self._shard.shard!r}: its numbers are not 0 to {upper}, each once")
        self._extend(known, [_decoder.decode(record.data) for record in records])

    async def register(self, files: Sequence[FileVersion]) -> None:
        """Number ``files`` in the order given, durably; what another instance numbered meanwhile keeps that number.

        Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: some may be numbered; `refresh` and look.
        """
        while new := [file for file in files if file.name not in self._numbers]:
            first = len(self._files)
            records = [Record(_encoder.encode(file), first + i, 1) for i, file in enumerate(new)]
            match await self._shard.append(records, Frontier(first), Frontier(first + len(new))):
                case Appended():
                    self._extend(first, new)
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self._shard.shard, outcome, self._epoch)

    async def pass_over(self, number: int, *, withdrawn: bool = False) -> None:
        """Note durably that a file is passed over, or its rows are withdrawn.  Idempotent; raises as `register`."""
        note = PassedOver(passed_over=number, withdrawn=True) if withdrawn else PassedOver(passed_over=number)
        while number not in self.passed_over or (withdrawn and number in self.kept):
            at = len(self._files)
            match await self._shard.append([Record(_encoder.encode(note), at, 1)], Frontier(at), Frontier(at + 1)):
                case Appended():
                    self._extend(at, [note])
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self._shard.shard, outcome, self._epoch)

    def _extend(self, first: int, found: Sequence[FileVersion | PassedOver]) -> None:
        """Take note of what is numbered from ``first`` on, but for what another coroutine noted meanwhile."""
        for each in found[len(self._files) - first :]:
            match each:
                case FileVersion():
                    self._numbers[each.name] = len(self._files)
                    self._files.append(each)
                case {"passed_over": number}:
                    if each.get("withdrawn"):
                        self.kept.discard(number)
                    elif number not in self.passed_over:
                        self.kept.add(number)
                    self.passed_over.add(number)
                    self._files.append(None)


UNFINISHED_SETTLE_FACTOR: Final = 10
_UNFINISHED_ENDS: Final = (".tmp", ".part", ".crc")
_PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_BYTES_MIN: Final = 12


UNTAKEN: Final = Problem(
    "file-untaken",
    WAITS + "file {file!r}, which is not taken yet: {why}",
    Stopped.NOTHING,
    seen="The files that are taken.",
)
MORE_UNTAKEN: Final = Problem(
    "more-files-untaken",
    WAITS + "{count} more files, which are not taken yet",
    Stopped.NOTHING,
    seen="The files that are taken.",
)


class Completeness:
    """Tells complete files from others.  ``waiting``: why files were not taken when it was last asked.

    A file is complete when, as far as can be seen from outside, no writer continues it: its name is none that tools
    give to unfinished files; it has not been modified for the settle time (text that does not end in a newline, or is
    empty: ten times that); Parquet has its magic at both ends.  Where files appear whole, as in an object store, only
    the name is checked.  A name must be UTF-8.
    """

    def __init__(self, clock: Clock, folder: Folder, options: FileOptions) -> None:
        self._clock = clock
        self._folder = folder
        self._options = options
        self._ends: dict[str, tuple[Stamp, Ends]] = {}  # of files that wait
        self.waiting: list[str] = []

    async def complete(self, there: Mapping[str, Stamp]) -> list[FileVersion]:
        """Return those of the files that are complete, in their order; note why the others wait."""
        waiting = {name: _unwritable(name) or self._unsettled(stamp) for name, stamp in there.items()}
        settled = {name: stamp for name, stamp in there.items() if not waiting[name]}
        waiting |= await self._unfinished(settled)
        wanted = {name: stamp for name, stamp in there.items() if not waiting[name]}
        checks = await self._folder.check({name: stamp.size for name, stamp in wanted.items()}) if wanted else {}
        found = []
        for name, checked in checks.items():
            match checked:
                case OSError():
                    waiting[name] = f"it cannot be read: {checked.strerror}"
                case Checked(check, stamp) if stamp == wanted[name]:
                    found.append(FileVersion(name, stamp.size, stamp.mtime_ns, check))
                case Checked():
                    waiting[name] = "it is being written"
        self.waiting = [UNTAKEN.said(file=name, why=why) for name, why in waiting.items() if why]
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
        if settle_ms and not self._folder.whole and self._age_ms(stamp) < settle_ms:
            return f"it was modified less than {settle_ms} ms ago, so its writer may go on"
        return ""

    def _is_told_by_ends(self, name: str, stamp: Stamp) -> bool:
        """Whether the ends of a settled file say something about its being complete."""
        if self._folder.whole:
            return False
        if not self._options.encoding.text:
            return self._options.encoding is Encoding.PARQUET  # the ends of Avro say nothing
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


def _unwritable(name: str) -> str:
    """Return why the sequence cannot hold a name, else nothing: Linux takes any bytes for one."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8, so it cannot be written down: rename it"
    return ""


def is_unfinished(name: str) -> bool:
    """Tell whether a name is one that tools give to what is not finished, or stands below one."""
    parts = PurePosixPath(name).parts
    return any(part.startswith(UNSEEN) for part in parts) or name.endswith(_UNFINISHED_ENDS)


DOUBTS_MAX: Final = 10_000
"""With so many files in doubt no others are looked at: each look that fails would add to them."""


class Watched:
    """The files of one source, as last listed.

    It says which files a probe looks at.  It is plain bookkeeping over names and numbers; the reader asks the folder
    and the sequence.

    - *Loose*: there and without a number.  All of them are looked at, until they are complete.
    - *In doubt*: numbered, and a listing says that the file went, or is another file now; or another process numbered
      it.  All of them are looked at, until one look finds nothing wrong.
    - *Known*: numbered and there.  Each probe looks at as many as the folder says, in turn.
    """

    def __init__(self, sequence: FileSequence) -> None:
        self._sequence = sequence
        self._turn: OrderedDict[int, None] = OrderedDict()  # the known files; the next to be looked at first
        self._numbered = 0  # so many numbers of the sequence are known here
        self._listed = False
        self.loose: set[str] = set()
        self.doubted: set[int] = set()

    def note(self, listing: Listing, must_be_there: Callable[[int], bool]) -> list[str]:
        """Take note of what a listing says; return the names of known files that are others now, or came back."""
        again = []
        for name in listing.came:
            number = self._sequence.number_of(name)
            if number is None:
                self.loose |= set() if is_unfinished(name) else {name}
            elif self._sequence.is_file(number):
                self._turn[number] = None
                if self._listed:
                    self.doubted.add(number)
                    again.append(name)
        for name in listing.gone:
            self.loose.discard(name)
            if (number := self._sequence.number_of(name)) is not None:
                self.doubted.add(number)
        first = 0 if not self._listed else self._numbered
        for number in filter(self._sequence.is_file, range(first, len(self._sequence))):
            name = self._sequence[number].name
            if name in self.loose:
                self.loose.discard(name)
                self._turn[number] = None
                self.doubted.add(number)
            elif number not in self._turn and must_be_there(number):
                self.doubted.add(number)
        for number in self._sequence.passed_over:
            self.left(number)
        self.doubted -= self._sequence.passed_over
        self._listed, self._numbered = True, len(self._sequence)
        return again

    def due(self, most: int) -> list[int]:
        """Return the numbers that are to be looked at; they are in doubt until `settled`."""
        if len(self.doubted) < DOUBTS_MAX:
            for number in list(islice(self._turn, most)):
                self._turn.move_to_end(number)
                self.doubted.add(number)
        return sorted(self.doubted)

    def settled(self, numbers: list[int]) -> None:
        """Take note that nothing is wrong with these files."""
        self.doubted.difference_update(numbers)

    def registered(self) -> None:
        """Take note of the files that this process has just numbered."""
        for number in filter(self._sequence.is_file, range(self._numbered, len(self._sequence))):
            name = self._sequence[number].name
            if name in self.loose:
                self.loose.discard(name)
                self._turn[number] = None
            else:
                self.doubted.add(number)  # another process was faster, and has seen a file that is not known here
        self._numbered = len(self._sequence)

    def left(self, number: int) -> None:
        """Take note that a file is gone, and may be."""
        self._turn.pop(number, None)

    def there(self, before: int, most: int) -> list[int]:
        """Return the first of the known files whose numbers are less than ``before``."""
        return list(islice(self._before(before), most))

    def _before(self, number: int) -> Iterator[int]:
        return (each for each in self._turn if each < number)
