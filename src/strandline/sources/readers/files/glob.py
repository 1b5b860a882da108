"""Globs, walked directory by directory: which names of a directory match, and which directories to go on with.

A pattern is read as the shell reads it: ``*``, ``?`` and ``[…]`` match within a name and not a leading dot, ``**``
matches any number of directories, none of them hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final, TypeAlias

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
