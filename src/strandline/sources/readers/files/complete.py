"""Which files are complete: no writer goes on with them, as far as can be seen from outside.

A file is complete when its name is none that tools give to unfinished ones; it has not been modified for the settle
time (text that does not end in a newline, or is empty: ten times that); Parquet has its magic at both ends.  Where
files appear whole, as in an object store, all that is asked is the name.  A name must be UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from strandline.algebra.formats import Encoding
from strandline.errors import WAITS
from strandline.problem import Problem, Stopped
from strandline.sources.readers.files.folder import Checked, Ends, Folder, Stamp
from strandline.sources.readers.files.options import COMPRESSED, UNSEEN, FileOptions
from strandline.sources.readers.files.sequence import FileVersion
from strandline.store.clock import Clock

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
    """Tells complete files from others.  ``waiting``: why files were not taken when it was last asked."""

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
