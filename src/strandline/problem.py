"""Problems: what may stop an item, declared where it is met, with whom it stops and what ends it.

A problem is said to people by its declaration alone (`Problem.said`).  So the way out that a sentence names, the one
in the table of all problems (docs/reference/problems.md) and the one that a test follows are the same text.

A sentence knows what it tells of (`Said`).  Names in it come from others, as files are called: a page that shows ways
out takes them from there, and never out of the text.

Three kinds, as `strandline.states` has them: a *problem* stops an item until a way out is taken; a *wait* ends by
itself, so its cause begins with `errors.WAITS`; a *notice* stops no item.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import chain, repeat
from typing import Any, Self

from strandline.algebra.schema import quote


class Stopped(Enum):
    """Who is stopped by a problem, and what readers see meanwhile."""

    SOURCE = "the source", "What came before stays readable, in its views too; nothing newer comes."
    TABLE = "the table of the source", "What came before stays readable; other tables of the source go on."
    VIEW = "the view", "Its rows up to the last complete time, in the views over it too."
    ENDPOINT = "the materialization", "The endpoint keeps the rows of the last transaction."
    WRITES = "tables", "What was committed; no write is complete meanwhile."
    COMMAND = "the command", "All that is there: the command has changed nothing."
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

    def said(self, **about: object) -> Said:
        """Return the sentence about one case: what has happened, and all ways out.

        >>> ways = Way("put it back"), Way("skip it", "strandline skip {file:shell}")
        >>> gone = Problem("gone", "file {file!r} is gone", Stopped.SOURCE, ways)
        >>> gone.said(file="a b")
        "file 'a b' is gone; put it back; or skip it: strandline skip 'a b'"
        """
        words = {name: _Word(value) for name, value in about.items()}
        ways = [Way(way.what.format(**words), way.command.format(**words), way.foreign) for way in self.ways]
        subjects = [str(value) for value in about.values() if not isinstance(value, int | float)]
        return Said(Case(self.name, self.cause.format(**words), tuple(ways), tuple(subjects)))


@dataclass(frozen=True, slots=True)
class Case:
    """A problem as one item has it.

    ``name``: that of the problem; empty: it is declared nowhere, as what an upstream answers, and has no ``ways``.
    ``about``: what the sentence names, without its figures, which may change while it is the same case.
    """

    name: str
    cause: str
    ways: tuple[Way, ...] = ()
    about: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What has happened, and all ways out."""
        ways = "; or ".join(f"{way.what}: {way.command}" if way.command else way.what for way in self.ways)
        return "; ".join(filter(None, (self.cause, ways)))


class Said(str):
    """A sentence about an item, and the ``cases`` that it tells of.  `str` of it is the text alone.

    >>> gone = Problem("gone", "file {file!r} is gone", Stopped.SOURCE, (Way("put it back"),))
    >>> both = joined([gone.said(file="a"), "the disk is full"])
    >>> both, [case.name for case in cases_of(both)], cases_of(str(both))
    ("file 'a' is gone; put it back; the disk is full", ['gone', ''], ())
    """

    __slots__ = ("cases",)
    cases: tuple[Case, ...]

    def __new__(cls, *cases: Case) -> Self:
        """Return the sentence about ``cases``."""
        said = super().__new__(cls, "; ".join(each.text for each in cases))
        said.cases = cases
        return said

    def __getnewargs__(self) -> tuple[Case, ...]:  # type: ignore[override]
        """Return what makes it again in another process, behind an error that crosses Spark's processes."""
        return self.cases


def cases_of(text: str) -> tuple[Case, ...]:
    """Return the cases that a text tells of; none where it only is a text, as one of an older process."""
    return text.cases if isinstance(text, Said) else ()


def text_alone(value: object) -> str:
    """Return a text that knows more as a text: the hook of an encoder.  Raises `TypeError` for anything else."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no text, and has no form here")


def joined(texts: Iterable[str]) -> str:
    """Return texts as one; empty ones are left out."""
    there = [text for text in texts if text]
    if not any(map(cases_of, there)):
        return "; ".join(there)
    return Said(*(case for text in there for case in cases_of(text) or (Case("", text),)))


def known_by(text: str, cases: Iterable[Case]) -> str:
    """Return a ``text`` that came alone from another process, with its ``cases``; without, if it tells of others."""
    said = Said(*cases)
    return said if said == text else text


def all_known_by(texts: Iterable[str], cases: Iterable[Iterable[Case]]) -> list[str]:
    """Return ``texts`` that came alone, each with its cases, as `known_by` does; ``cases`` may be fewer."""
    return [*map(known_by, texts, chain(cases, repeat(())))]


def told(text: str | None) -> dict[str, Any]:
    """Return a problem as plain data: its text, and its cases with their names, causes and ways out."""
    return {"problem": None if text is None else str(text), "cases": _cases(text or "")}


def noticed(texts: Iterable[str]) -> dict[str, Any]:
    """Return notices as plain data: their texts, and by place the cases of each; none where it is declared nowhere."""
    said = [*texts]
    return {"notices": [str(each) for each in said], "notice_cases": [_cases(each) for each in said]}


def _cases(text: str) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "cause": each.cause, "ways": [asdict(way) for way in each.ways]} for each in cases_of(text)
    ]


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
