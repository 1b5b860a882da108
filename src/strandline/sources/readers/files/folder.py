"""What the files reader asks of a place with files: what changed there, and the bytes of a few, all off its loop.

A listing says what came and went since the last one, so that files that were taken long ago cost nothing.  A file's
*stamp* shows without opening it whether it was replaced: one whose stamp is as before is the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

END_BYTES: Final = 4
"""How much of both ends of a file shows whether it is whole."""


class Stamp(NamedTuple):
    """What shows, without opening a file, that it was replaced; ``mtime_ns`` is its modification time."""

    size: int
    mtime_ns: int
    inode: int


class Listing(NamedTuple):
    """What changed since the listing before: names that came, or are another file's now, in order; names that went."""

    came: Sequence[str]
    gone: Sequence[str]


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

    @property
    def looks(self) -> int:
        """How many known files a probe looks at, in turn: those whose change no listing shows."""
        ...

    @property
    def whole(self) -> bool:
        """Whether a file that can be seen is complete, because it appears at once."""
        ...

    async def changes(self) -> Listing:
        """Return what changed since the last call that returned; at the first, all files came.

        Raises `NotADirectoryError` if there is no such directory, another `OSError` if it cannot be read.
        """
        ...

    async def look(self, names: Sequence[str], *, listed: bool = False) -> dict[str, Stamp]:
        """Return the stamps of those of ``names`` that are there as regular files.

        ``listed``: as the last listing found them is new enough, if it shows that.
        """
        ...

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """Return both ends of each file."""
        ...

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """Return a checksum of each file's content, and its stamp afterwards."""
        ...

    async def remove(self, names: Iterable[str], archive: str) -> dict[str, OSError | None]:
        """Delete files, or, unless ``archive`` is empty, move them there under their names; None: it is done.

        A file that is not there is done.  Moved again, a file takes the place of the one that was moved before.
        """
        ...
