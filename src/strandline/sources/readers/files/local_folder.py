"""A folder of this machine: each call is one hop into a thread, however many files it is about.

A directory's modification time moves when an entry comes, goes or is replaced.  So a directory is read again only if
its time is another one than when it was last read, and a quiet listing costs a call for each directory.  Times have a
grain, and what happens twice in one grain shows once: a directory is read again until `TRUST_MS` after it was first
seen with a time.

What a listing cannot show is a file that is written in place; that is what a probe looks at files for.

A file leaves: it is deleted, or moved to an archive.  A move within a file system is one step.  Into another it is a
copy that gets its name when it is durable, and then the removal: a crash between leaves the file in both places, and
the next move puts it in its own place again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import google_crc32c

from strandline.sources.readers.files.folder import END_BYTES, Checked, Ends, Glob, Listing, Stamp, States
from strandline.store.clock import Clock

T = TypeVar("T")

LOOKS: Final = 1_000
TRUST_MS: Final = 2_500
"""The coarsest file systems count modification times in two seconds."""
CHECK_WHOLE_BYTES_MAX: Final = 64 << 20
"""A file up to this size is summed whole; of a larger one only both ends, so that this costs no pass over it."""
CHECK_END_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 20
_COPYING: Final = ".copying"
assert 2 * CHECK_END_BYTES <= CHECK_WHOLE_BYTES_MAX
assert CHECK_END_BYTES % _CHUNK_BYTES == 0


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory as it was read: its identity and time, since when it is known so, its files by inode, what is below.

    ``trusted``: it was read long enough after it got its time.
    """

    stamp: tuple[int, int, int]
    since_ms: int
    trusted: bool
    files: Mapping[str, int]
    below: Mapping[str, States]


class LocalFolder:
    """The `Folder` of the files below ``root`` that match the glob ``pattern``."""

    looks = LOOKS
    whole = False

    def __init__(self, root: Path, pattern: str, clock: Clock) -> None:
        self._root = root
        self._glob = Glob(pattern)
        self._clock = clock
        self._seen: dict[str, _Directory] = {}

    @property
    def root(self) -> str:
        """See `Folder.root`."""
        return str(self._root)

    async def changes(self) -> Listing:
        """See `Folder.changes`."""
        self._seen, listing = await asyncio.to_thread(self._changes, self._seen)
        return listing

    async def look(self, names: Sequence[str], *, listed: bool = False) -> dict[str, Stamp]:
        """See `Folder.look`."""
        return await asyncio.to_thread(self._look, names)

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """See `Folder.ends`."""
        return await asyncio.to_thread(self._each, _ends, sizes)

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """See `Folder.check`."""
        return await asyncio.to_thread(self._each, _checked, sizes)

    async def remove(self, names: Iterable[str], archive: str) -> dict[str, OSError | None]:
        """See `Folder.remove`."""
        return await asyncio.to_thread(leave, self._root, names, Path(archive).absolute() if archive else None)

    def _changes(self, before: Mapping[str, _Directory]) -> tuple[dict[str, _Directory], Listing]:
        if not self._root.is_dir():
            raise NotADirectoryError(str(self._root))
        seen: dict[str, _Directory] = {}
        came, gone = list[str](), list[str]()
        waiting: list[tuple[str, States, frozenset[tuple[int, int]]]] = [("", self._glob.start, frozenset())]
        while waiting:
            name, states, above = waiting.pop()
            found = self._directory(name, states, before.get(name))
            if found is None or found.stamp[1:] in above:
                continue  # it went meanwhile, or a link leads back to where it is
            seen[name] = found
            known = before[name].files if name in before else {}
            if found.files is not known:
                came += [each for each, inode in found.files.items() if known.get(each) != inode]
                gone += [each for each in known if each not in found.files]
            waiting += [(each, those, above | {found.stamp[1:]}) for each, those in found.below.items()]
        gone += [each for name, lost in before.items() if name not in seen for each in lost.files]
        return seen, Listing(sorted(came), gone)

    def _directory(self, name: str, states: States, known: _Directory | None) -> _Directory | None:
        """Return a directory as it is, without reading it if it is as ``known``; None if there is none."""
        now_ms, path = self._clock.now_ms(), self._root / name
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_dev, found.st_ino)
            if known is not None and known.stamp == stamp:
                if known.trusted:
                    return known
                since_ms = min(known.since_ms, now_ms)
            else:
                since_ms = now_ms
            read = _Directory(stamp, since_ms, now_ms - since_ms >= TRUST_MS, *self._read(name, states))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if known is not None and (known.files, known.below) == (read.files, read.below):
            return replace(known, stamp=stamp, since_ms=since_ms, trusted=read.trusted)
        return read

    def _read(self, name: str, states: States) -> tuple[dict[str, int], dict[str, States]]:
        """Return the files of a directory that match, and the directories that may hold others."""
        files, below = dict[str, int](), dict[str, States]()
        prefix = f"{name}/" if name else ""
        matches = self._glob.matcher(states)
        with os.scandir(self._root / name) as entries:
            for entry in entries:
                if matches(entry.name) and entry.is_file():
                    files[prefix + entry.name] = entry.inode()
                elif (inside := self._glob.below(states, entry.name)) and entry.is_dir():
                    below[prefix + entry.name] = inside
        return files, below

    def _look(self, names: Sequence[str]) -> dict[str, Stamp]:
        seen = ((name, _stamp(self._root / name)) for name in names)
        return {name: stamp for name, stamp in seen if stamp is not None}

    def _each(self, read: Callable[[Path, int], T], sizes: Mapping[str, int]) -> dict[str, T | OSError]:
        found: dict[str, T | OSError] = {}
        for name, size in sizes.items():
            try:
                found[name] = read(self._root / name, size)
            except OSError as error:
                found[name] = error
        return found


def content_check(path: Path, size: int) -> int:
    """Return the CRC32C of the file's first ``size`` bytes; above `CHECK_WHOLE_BYTES_MAX` of both its ends only."""
    ends = (
        [(0, size)]
        if size <= CHECK_WHOLE_BYTES_MAX
        else [(0, CHECK_END_BYTES), (size - CHECK_END_BYTES, CHECK_END_BYTES)]
    )
    crc = 0
    with path.open("rb") as file:
        for start, length in ends:
            file.seek(start)
            while chunk := file.read(min(start + length - file.tell(), _CHUNK_BYTES)):
                crc = google_crc32c.extend(crc, chunk)
    return crc


def _checked(path: Path, size: int) -> Checked:
    return Checked(content_check(path, size), _stamp(path))


def _ends(path: Path, size: int) -> Ends:
    with path.open("rb") as file:
        head = file.read(END_BYTES)
        file.seek(max(0, size - END_BYTES))
        return Ends(head, file.read(END_BYTES))


def _stamp(path: Path) -> Stamp | None:
    """Return the file's stamp, or None if no regular file is there."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def leave(root: Path, names: Iterable[str], archive: Path | None) -> dict[str, OSError | None]:
    """Delete the files ``names`` of ``root``, or move them to ``archive``; return what went wrong, by name."""
    found: dict[str, OSError | None] = {}
    for name in names:
        try:
            if archive is None:
                (root / name).unlink(missing_ok=True)
            else:
                _move(root / name, archive / name)
            found[name] = None
        except OSError as error:
            found[name] = error
    return found


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except FileNotFoundError:
        return  # it was moved before
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(target.name + _COPYING)
        shutil.copy2(source, copy)
        _sync(copy)
        copy.replace(target)
        _sync(target.parent)
        source.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
