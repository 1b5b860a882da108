"""Problems: what may stop an item, declared where it is met, with whom it stops and what ends it.

A problem is said to people by its declaration alone (`Problem.said`).  So the way out that a sentence names, the one
in the table of all problems (docs/reference/problems.md) and the one that a test follows are the same text.

Three kinds, as `strandline.states` has them: a *problem* stops an item until a way out is taken; a *wait* ends by
itself, so its cause begins with `errors.WAITS`; a *notice* stops no item.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import Enum

from strandline.algebra.schema import quote


class Stopped(Enum):
    """Who is stopped by a problem, and what readers see meanwhile."""

    SOURCE = "the source", "What came before stays readable, in its views too; nothing newer comes."
    TABLE = "the table of the source", "What came before stays readable; other tables of the source go on."
    VIEW = "the view", "Its rows up to the last complete time, in the views over it too."
    ENDPOINT = "the materialization", "The endpoint keeps the rows of the last transaction."
    WRITES = "tables", "What was committed; no write is complete meanwhile."
    NOTHING = "no item", "All that is there."

    @property
    def who(self) -> str:
        """Who stands still."""
        return self.value[0]

    @property
    def seen(self) -> str:
        """What a reader sees."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Way:
    """A way out of a problem: what to do, and the ``command`` that does it.

    ``command`` is given to a shell if it begins with ``strandline``, and else to `Environment.execute`.  Empty: it is
    done outside, as upstream.  ``foreign``: it is SQL for the other system.
    """

    what: str
    command: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one kind.

    ``name``: what it is called, for ever.  ``cause``: what has happened.  ``ways``: what ends it, the mildest first.
    ``seen``: what a reader sees meanwhile; empty: what `Stopped` says.

    ``cause`` and ``ways`` name what they are about as Python formats texts: ``{file!r}`` for people,
    ``{source:shell}`` as a word of a shell, ``{source:sql}`` as a name in SQL.
    """

    name: str
    cause: str
    stops: Stopped
    ways: tuple[Way, ...] = field(default=())
    seen: str = ""

    def said(self, **about: object) -> str:
        """Return the sentence about one case: what has happened, and all ways out.

        >>> ways = Way("put it back"), Way("skip it", "strandline skip {file:shell}")
        >>> gone = Problem("gone", "file {file!r} is gone", Stopped.SOURCE, ways)
        >>> gone.said(file="a b")
        "file 'a b' is gone; put it back; or skip it: strandline skip 'a b'"
        """
        words = {name: _Word(value) for name, value in about.items()}
        parts = [
            self.cause,
            "; or ".join(f"{way.what}: {way.command}" if way.command else way.what for way in self.ways),
        ]
        return "; ".join(part.format(**words) for part in parts if part)


class _Word(str):
    """A value in a sentence."""

    __slots__ = ()

    def __format__(self, form: str) -> str:
        match form:
            case "shell":
                return shlex.quote(self)
            case "sql":
                return quote(self)
        return super().__format__(form)
