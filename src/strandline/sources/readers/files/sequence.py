"""The durable sequence of a files source: which file came when, and what it was.

A directory has no order of its own that lasts: names sort, but a later file may have an earlier name; modification
times tie, and tools set them at will.  So the order in which files are first seen is written down, one record a file,
before any binding may cover it; offset n of the source is the n-th file of the sequence, for ever.  In the record
shard a file's number is its time, so the shard's upper is the next number and two instances that see a new file at
once cannot both number it.

Each record holds what the file was: size, modification time and a checksum of its content.

A number may also be that of a note: an operator passes over a file, which is gone or was changed for good.  The note
has no rows, and from then on the file is neither read nor looked at; what is durable of it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier.antichain import Frontier
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch


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
    """A note in the place of a file: the file of this number is passed over; ``withdrawn``: and its rows are gone."""

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
