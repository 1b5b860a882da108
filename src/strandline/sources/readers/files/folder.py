"""A folder as the files reader asks it: what changed there, the bytes of a few files, and globs; off the event loop.

A listing returns what came and went since the last one, so files that were taken long ago cost nothing.  A file's
*stamp* shows without opening it whether the file was replaced: an unchanged stamp means the same file.

A glob is walked directory by directory, and read as the shell reads it: ``*``, ``?`` and ``[…]`` match within a name
and not a leading dot, ``**`` matches any number of directories, none of them hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Final, NamedTuple, Protocol, TypeAlias

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


States: TypeAlias = frozenset[int]
"""Where in the pattern a directory may stand: the parts that its entries are to match."""

_ANY: Final = "**"
_WILD: Final = frozenset("*?[")


class Glob:
    """One pattern, relative to a directory.

    >>> glob = Glob("**/s*/*.csv")
    >>> inside = glob.below(glob.start, "sub")
    >>> [glob.matcher(inside)(name) for name in ("a.csv", ".a.csv", "a.txt")], glob.matcher(glob.start)("a.csv")
    ([True, False, False], False)
    >>> glob.below(glob.start, ".hidden"), Glob("*.csv").below(Glob("*.csv").start, "sub")
    (frozenset(), frozenset())
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part]
        if parts and parts[-1] == _ANY:
            parts.append("*")
        self._any = [part == _ANY for part in parts]
        self._parts = [_matcher(part) for part in parts]
        self.start: States = self._closed({0})

    def matcher(self, states: States) -> Callable[[str], bool]:
        """Return what says whether a file in a directory with these states matches."""
        last = len(self._parts) - 1
        return self._parts[last] if last in states else (lambda _: False)

    def below(self, states: States, name: str) -> States:
        """Return the states of the directory ``name`` in one with ``states``; empty: nothing in it matches."""
        found = set[int]()
        for state in sorted(states):
            if self._any[state]:
                found |= set() if name.startswith(".") else {state}
            elif state + 1 < len(self._parts) and self._parts[state](name):
                found.add(state + 1)
        return self._closed(found)

    def _closed(self, states: set[int]) -> States:
        found = set(states)
        for state in sorted(states):
            while self._any[state]:
                state += 1  # noqa: PLW2901 - what any number of directories matches, none matches too
                found.add(state)
        return frozenset(found)


def _matcher(part: str) -> Callable[[str], bool]:
    if not _WILD.intersection(part):
        return lambda name: name == part
    matches = re.compile(translate(part)).match
    shows_hidden = part.startswith(".")
    return lambda name: (shows_hidden or not name.startswith(".")) and matches(name) is not None
