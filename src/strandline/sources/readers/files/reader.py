"""The files reader: a directory that grows, or a prefix of an object store, of CSV, JSON lines or Parquet files.

A file is one message: it is taken once, whole, when it is complete (`Completeness`), and must then stay as it is.
Offset n is the n-th file of the durable sequence (`sequence.py`); files first seen by one probe are numbered in order
of name.  `notices` reports the files that wait.

*Stays as it is*: a probe compares the sizes and modification times of files with what was recorded, and their stamps
with those last seen; only the content of a file where these differ is read again.  What it looks at does not grow with
the files that were taken (`Watched`): what a listing shows is noticed at once, that a file is gone, or another one
is in its place.  A file that is *written in place* is noticed when its turn comes: `Folder.looks` known files are
looked at by each probe, so up to so many are all looked at each time, and of 100 000 each is every hundredth.  Before
it is read a file is always looked at.

A file that changed, or vanished, is a `SourceError` that stops the source, before it is durable here (we could not read
what we bound) and after (the collection would no longer be what is upstream).  With ``retain`` false a file may vanish
once `commit` said that it is durable.  Its name stays taken: if it comes back as it was, it is the same file and is not
read again.

*Is passed over*: where neither can be mended, an operator has the source pass over a file.  What is
durable of it stays; the rest of it is not read.

*Leaves*: with ``on_durable``, `commit` deletes or archives the files that are durable, if they are as they were
recorded (law R4).  What cannot leave is tried again by each `commit`, and `notices` says why.  A file that comes back
as it was leaves again.

*Columns*: where the source evolves, files are looked at for columns that it does not read, before they are read
(`table.py`).

*Takes back*: the rows of files that ``retract`` names are withdrawn, one by one; a correction is such a file with the
rows as they were, and another with the rows as they are.  A row that was never there makes the collection negative at
that time, which is an error for every reader.  A record that could not be decoded is taken back in the same way, by
its text as it was: its error leaves.

Whatever touches the file system is asked of a `Folder`, which keeps it off the event loop.

Warns: a file that changes while its rows are being read, and keeps its size and modification time, is not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from strandline.algebra.messages import DatedFile
from strandline.algebra.schema import Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ELSEWHERE
from strandline.sources.reader import FileDecoder, Plain, Records, TakenBack
from strandline.sources.readers.files.discovery import NewColumns
from strandline.sources.readers.files.folder import Checked, Folder, Listing, Stamp
from strandline.sources.readers.files.options import (
    FileOptions,
    OnDurable,
)
from strandline.sources.readers.files.sequence import MORE_UNTAKEN, Completeness, FileSequence, FileVersion, Watched
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

PARTITION: Final = ""
"""All files are one partition: the sequence is their order."""
NOTICES_MAX: Final = 10
LEAVE_MAX: Final = 1_000
"""So many files leave at one commit."""
SMALL_BYTES_MAX: Final = 1 << 20
"""So few bytes of files are likely to be at most some ten thousand rows."""
_ANOTHER: Final = Stamp(-1, -1, -1)
"""No file has it."""
_SKIP: Final = Way("go on without it", "strandline source skip {item:shell} --file {file:shell} --apply")
_WITHDRAW: Final = Way(
    "go on without it, and take its rows back (lines that could not be decoded stay errors)",
    "strandline source skip {item:shell} --file {file:shell} --withdraw --apply",
)
CHANGED: Final = Problem(
    "file-changed",
    "file {file!r} changed {when}: recorded were {recorded}; there now are {now}",
    Stopped.SOURCE,
    (Way("put the old content back, and give new content a name of its own"), _SKIP, _WITHDRAW),
)
VANISHED: Final = Problem(
    "file-vanished",
    "file {file!r} vanished before it was durable here: recorded were {recorded}; it does not exist now",
    Stopped.SOURCE,
    (Way("put it back"), _SKIP),
)
VANISHED_LATER: Final = Problem(
    "file-vanished-later",
    "file {file!r} vanished after it was made durable: recorded were {recorded}; it does not exist now",
    Stopped.SOURCE,
    (
        Way("put it back"),
        Way("let files go once they are durable", "ALTER SOURCE {item:sql} SET (retain 'false')"),
        _SKIP,
        _WITHDRAW,
    ),
)
ABSENT: Final = Problem(
    "directory-absent",
    "directory {directory!r} does not exist",
    Stopped.SOURCE,
    (Way("create it"), ELSEWHERE),
)
STAYS: Final = Problem(
    "file-stays",
    "file {file!r} is durable and cannot be {done}: {why}",
    Stopped.NOTHING,
    (Way("let this process remove it: each commit tries again"),),
)
MORE_STAY: Final = Problem(
    "more-files-stay",
    "{count} more files are durable and cannot be {done}",
    Stopped.NOTHING,
    (Way("let this process remove them: each commit tries again"),),
)


class FileReader:
    """Reads one directory, glob or prefix.  See `SourceReader`."""

    def __init__(
        self,
        clock: Clock,
        folder: Folder,
        sequence: FileSequence,
        decoder: FileDecoder,
        schema: Schema,
        options: FileOptions,
        columns: NewColumns | None = None,
        later: tuple[str, ...] = (),
        *,
        name: str,
    ) -> None:
        """``columns``: how files are looked at for more of them.  ``later``: those that a file may lack.

        ``name``: the source's, for what messages advise.
        """
        self._folder = folder
        self._sequence = sequence
        self._decoder = decoder
        self._schema = schema
        self._options = options
        self._form = replace(options.decoding, later=later)
        self._columns = columns
        self._name = name
        self._durable = NOTHING_READ
        self._watched = Watched(sequence)
        self._completeness = Completeness(clock, folder, options)
        self._same: dict[str, Stamp] = {}  # of files known to be as recorded
        self._staying: dict[str, str] = {}  # files that should have left, and why they have not

    @property
    def bounded(self) -> bool:
        """Files may go once they are durable only where the definition says so."""
        return not self._options.stays

    def records(self, table: str) -> Records:
        """Return that rows are taken back where the names of some files say so."""
        return TakenBack() if self._options.retract else Plain()

    async def snapshot(self, table: str) -> Offsets | None:
        """Return None: all files are read by their numbers."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """Look at what changed and at some known files, number the new ones that are complete, return how many."""
        listing = await self._changes()
        try:
            await self._sequence.refresh()
        finally:
            again = self._watched.note(listing, self._must_be_there)
            self._same |= dict.fromkeys(again, _ANOTHER)  # whatever its size and its time are
        due = self._watched.due(self._folder.looks)
        await self._check(due, await self._look([self._sequence[number].name for number in due], listed=True))
        self._watched.settled(due)
        loose = await self._look(sorted(self._watched.loose), listed=True)
        await self._sequence.register(await self._completeness.complete(loose))
        self._watched.registered()
        return Offsets({PARTITION: len(self._sequence)})

    def _must_be_there(self, number: int) -> bool:
        return self._options.stays or not self._durable.covers(PARTITION, number)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the rows of the files of these slices; each is first compared with what was recorded."""
        bound = [(n, each.time) for each in slices for n in range(each.lower[PARTITION], each.upper[PARTITION])]
        if any(number >= len(self._sequence) for number, _ in bound):
            await self._sequence.refresh()
        wanted = [(number, time) for number, time in bound if self._sequence.is_file(number)]
        names = [self._sequence[number].name for number, _ in wanted]
        await self._check([number for number, _ in wanted], await self._look(names), reading=True)
        files = []
        for number, time in wanted:
            recorded, withdrawn = self._sequence[number], self._options.withdraws(self._sequence[number].name)
            path = f"{self._folder.root}/{recorded.name}"
            files.append(DatedFile(path, recorded.name, recorded.size, time, withdrawn))
        if self._columns is not None and files:
            first = next(filter(self._sequence.is_file, range(len(self._sequence))))
            await self._columns.look([each.path for each in files], f"{self._folder.root}/{self._sequence[first].name}")
        return await self._decoder.decode(files, self._schema, self._form, locate=locate)

    async def commit(self, resume: Offsets) -> None:
        """Remember which files are durable; these may now be deleted, or are, as the definition says."""
        self._durable = self._durable.join(resume)
        if self._options.on_durable is not OnDurable.KEEP:
            await self._leave(self._watched.there(self._durable[PARTITION], LEAVE_MAX))

    async def _leave(self, numbers: Sequence[int]) -> None:
        """Delete or archive durable files that are as they were recorded; what is wrong with others a probe says."""
        recorded = {self._sequence[number].name: number for number in numbers}
        try:
            there = await self._folder.look(list(recorded))
        except OSError as error:
            self._staying = {name: str(error.strerror) for name in recorded}
            return
        as_it_was = [
            name
            for name, stamp in there.items()
            if stamp == self._same.get(name)
            or (name not in self._same and stamp[:2] == self._sequence[recorded[name]].stamp)
        ]
        left = await self._folder.remove(as_it_was, self._options.archive or "") if as_it_was else {}
        self._staying = {name: str(error.strerror or error) for name, error in left.items() if error is not None}
        for name in [name for name in recorded if name not in there or left.get(name, name) is None]:
            self._watched.left(recorded[name])
            self._same.pop(name, None)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether the files of these slices have few bytes."""
        numbers = (n for each in slices for n in range(each.lower[PARTITION], each.upper[PARTITION]))
        return sum(self._sequence[n].size for n in numbers if self._sequence.is_file(n)) <= SMALL_BYTES_MAX

    def notices(self) -> tuple[str, ...]:
        """Return which columns are not read, and which files were not taken by the last probe or have not left."""
        done = "deleted" if self._options.on_durable is OnDurable.DELETE else "archived"
        staying = [STAYS.said(file=name, done=done, why=why) for name, why in self._staying.items()]
        unread = [] if self._columns is None or not self._columns.notice else [self._columns.notice]
        return (
            *unread,
            *_first(self._completeness.waiting, lambda more: MORE_UNTAKEN.said(count=more)),
            *_first(staying, lambda more: MORE_STAY.said(count=more, done=done)),
        )

    async def close(self) -> None:
        """Nothing is open between calls."""

    async def _changes(self) -> Listing:
        root = self._folder.root
        try:
            return await self._folder.changes()
        except NotADirectoryError as error:
            raise absent(root) from error
        except OSError as error:
            raise Unavailable(f"directory {root!r} cannot be listed: {error}") from error

    async def _look(self, names: Sequence[str], *, listed: bool = False) -> Mapping[str, Stamp]:
        if not names:
            return {}
        try:
            return await self._folder.look(names, listed=listed)
        except OSError as error:
            raise Unavailable(f"files of {self._folder.root!r} cannot be looked at: {error}") from error

    async def _check(self, numbers: Sequence[int], seen: Mapping[str, Stamp], *, reading: bool = False) -> None:
        """Raise `SourceError` unless each file is as recorded, or gone where it may be; open only what was touched."""
        touched: dict[str, tuple[int, Stamp]] = {}
        for number in numbers:
            recorded = self._sequence[number]
            stamp = seen.get(recorded.name)
            if stamp is None:
                self._allow_absence(number, reading=reading)
                self._watched.left(number)
                self._same.pop(recorded.name, None)
            elif recorded.name not in self._same and stamp[:2] == recorded.stamp:
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
                about = {"item": self._name, "file": name, "recorded": recorded, "now": now}
                raise SourceError(CHANGED.said(when=self._when(number), **about))
            self._same[name] = stamp

    def _allow_absence(self, number: int, *, reading: bool) -> None:
        recorded, durable = self._sequence[number], self._durable.covers(PARTITION, number)
        if durable and not self._options.stays and not reading:
            return
        problem = VANISHED_LATER if durable else VANISHED
        raise SourceError(problem.said(item=self._name, file=recorded.name, recorded=recorded))

    def _when(self, number: int) -> str:
        durable = self._durable.covers(PARTITION, number)
        return "after it was made durable" if durable else "before it was durable here"

    async def _checked(self, wanted: Mapping[str, Stamp]) -> dict[str, Checked | OSError]:
        if not wanted:
            return {}
        return await self._folder.check({name: stamp.size for name, stamp in wanted.items()})


def _first(said: Sequence[str], rest: Callable[[int], str]) -> tuple[str, ...]:
    """Return some of what is ``said`` of files, and how many more there are, as ``rest`` says it."""
    more = len(said) - NOTICES_MAX
    return (*said[:NOTICES_MAX], *((rest(more),) if more > 0 else ()))


def absent(root: str) -> SourceError:
    """Return what to say of a directory that is not there."""
    return SourceError(ABSENT.said(directory=root))
