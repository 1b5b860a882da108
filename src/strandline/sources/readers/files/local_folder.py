"""A folder of this machine: each call is one hop into a thread, however many files it is about.

Source: design page "sources" (files).
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import google_crc32c

from strandline.sources.readers.files.folder import END_BYTES, Checked, Ends, Stamp

T = TypeVar("T")

CHECK_WHOLE_BYTES_MAX: Final = 64 << 20
"""A file up to this size is summed whole; of a larger one only both ends, so that this costs no pass over it."""
CHECK_END_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 20
assert 2 * CHECK_END_BYTES <= CHECK_WHOLE_BYTES_MAX
assert CHECK_END_BYTES % _CHUNK_BYTES == 0


class LocalFolder:
    """The `Folder` of the files below ``root`` that match the glob ``pattern``."""

    def __init__(self, root: Path, pattern: str) -> None:
        self._root = root
        self._pattern = pattern

    @property
    def root(self) -> str:
        """See `Folder.root`."""
        return str(self._root)

    async def list(self) -> dict[str, Stamp]:
        """See `Folder.list`."""
        return await asyncio.to_thread(self._list)

    async def look(self, names: Sequence[str]) -> dict[str, Stamp]:
        """See `Folder.look`."""
        return await asyncio.to_thread(self._look, names)

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """See `Folder.ends`."""
        return await asyncio.to_thread(self._each, _ends, sizes)

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """See `Folder.check`."""
        return await asyncio.to_thread(self._each, _checked, sizes)

    def _list(self) -> dict[str, Stamp]:
        if not self._root.is_dir():
            raise NotADirectoryError(str(self._root))
        found = set(glob.iglob(self._pattern, root_dir=self._root, recursive=True))  # noqa: PTH207 - names relative to root
        return self._look(sorted(found))

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
        found = path.stat() if path.is_file() else None
    except FileNotFoundError:
        return None
    return None if found is None else Stamp(found.st_size, found.st_mtime_ns, found.st_ino)
