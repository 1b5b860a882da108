"""What the files reader asks of a file system: listings, and the bytes of a few files, all off its caller's loop.

A listing holds each file's *stamp*.  A file whose stamp is as before is the same file and is not opened again, so a
probe opens what is new or was touched, and nothing else.

Source: design page "sources" (files).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

END_BYTES: Final = 4
"""How much of both ends of a file shows whether it is whole."""


class Stamp(NamedTuple):
    """What shows, without opening a file, that it was replaced; ``mtime_ns`` is its modification time."""

    size: int
    mtime_ns: int
    inode: int


class Ends(NamedTuple):
    """The first and the last `END_BYTES` of a file; fewer where it has no more."""

    head: bytes
    tail: bytes


class Checked(NamedTuple):
    """The checksum of a file's content, and its stamp after the read (None: the file was deleted meanwhile)."""

    check: int
    stamp: Stamp | None


class Folder(Protocol):
    """A directory, and a pattern of names in it.  Names are relative to the directory, with slashes.

    ``sizes`` are names and the bytes that are to be read of each.  What goes wrong with one of several files is its
    value, because the others are fine.
    """

    @property
    def root(self) -> str:
        """The directory, as the engine finds it."""
        ...

    async def list(self) -> dict[str, Stamp]:
        """Return the regular files of the pattern, in order of name.

        Raises `NotADirectoryError` if there is no such directory, another `OSError` if it cannot be read.
        """
        ...

    async def look(self, names: Sequence[str]) -> dict[str, Stamp]:
        """Return the stamps of those of ``names`` that are there."""
        ...

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """Return both ends of each file."""
        ...

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """Return the CRC32C of each file, and its stamp afterwards."""
        ...
