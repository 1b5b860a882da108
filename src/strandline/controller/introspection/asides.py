"""Asides: what a query says to us and not to Spark, the time to read at and `errors(collection)`.

    SELECT * FROM v AS OF 1700000000000
    SELECT * FROM v AS OF TIMESTAMP '2026-01-31 12:00'
    SELECT reason, raw FROM errors(s)

Spark is given the text without them.  It keeps its length and its lines, as with the relations of `naming`, so every
position that Spark names is one of the author's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from strandline.algebra.schema import RESERVED
from strandline.compute.plan.sql import Word, position, question_marks, words
from strandline.controller.introspection.naming import blank
from strandline.errors import DefinitionError, InvalidUsage
from strandline.frontier import moment

_BEFORE_A_RELATION: Final = ("FROM", "JOIN", ",")
_PARAMETER: Final = "?"
_OF_SPARK: Final = ("VERSION", "TIMESTAMP")
"""Spark's own words before AS OF, which mean the same."""


@dataclass(frozen=True, slots=True)
class Half:
    """The errors of ``collection``, whose name begins at ``start``."""

    collection: str
    start: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A text for Spark; the time that its author wrote, if any; and stand-ins for the errors that it reads.

    ``given``: the values of the question marks that are left in the text.
    """

    text: str
    as_of: int | None = None
    halves: Mapping[str, Half] = field(default_factory=dict)
    given: Sequence[pa.Scalar] = ()


def taken(sql: str, given: Sequence[pa.Scalar] = ()) -> Asked:
    """Return ``sql`` without what it says to us; ``given``: the values of its question marks (NULL: no time).

    >>> taken("SELECT * FROM v AS OF 5 WHERE a > 1")
    Asked(text='SELECT * FROM v         WHERE a > 1', as_of=5, halves={}, given=())
    >>> taken("SELECT * FROM v AS OF ?", [pa.scalar(5)])
    Asked(text='SELECT * FROM v        ', as_of=5, halves={}, given=())
    >>> taken("SELECT reason FROM errors(s) e").text
    'SELECT reason FROM __e0      e'

    Raises `DefinitionError` with a position for a time that is none, or a second one that differs.
    """
    found, text, as_of, halves = words(sql), sql, None, dict[str, Half]()
    values = dict(zip(question_marks(sql), given, strict=False)) if given else {}
    for n, word in enumerate(found):
        if word.literal:
            continue
        if word.text.upper() == "AS" and (time := _time(found, n)) is not None:
            begin, at = time
            value = values.pop(at.start, None)
            try:
                read = None if value is not None and not value.is_valid else moment(_said(at, value))
            except InvalidUsage as error:
                raise DefinitionError(f"AS OF: {error}", position(sql, at.start)) from error
            if as_of not in (None, read):
                raise DefinitionError(
                    f"a statement reads everything at one time, and this is another one than {as_of}: write AS OF once",
                    position(sql, at.start),
                )
            after = found[found.index(at) + 1].start if at is not found[-1] else len(sql)
            text, as_of = blank(text, begin, after), read
        elif word.text.lower() == "errors" and (name := _erring(found, n)) is not None:
            stand_in, end = f"{RESERVED}e{len(halves)}", found[n + 3].start + 1
            halves[stand_in] = Half(name.text.lower(), name.start)
            text = blank(text, word.start, end)
            text = text[: word.start] + stand_in + text[word.start + len(stand_in) :]
    return Asked(text, as_of, halves, tuple(values.values()))


def _time(found: list[Word], n: int) -> tuple[int, Word] | None:
    """Return where AS OF begins, at word ``n``, and the word of its time; None: it is something else."""
    after = found[n + 1 : n + 4]
    if not n or len(after) < 2 or after[0].literal or after[0].text.upper() != "OF":
        return None
    named = not after[1].literal and after[1].text.upper() == "TIMESTAMP"
    at = after[2] if named and len(after) > 2 else after[1]
    if not at.literal and not at.text[:1].isdigit() and at.text != _PARAMETER:
        return None
    sparks = n > 1 and not found[n - 1].literal and found[n - 1].text.upper() in _OF_SPARK
    return found[n - 1 if sparks else n].start, at


def _said(at: Word, value: pa.Scalar | None) -> str:
    return at.text if value is None else str(value.as_py())


def _erring(found: list[Word], n: int) -> Word | None:
    """Return the name in ``errors(name)``, where word ``n`` begins that as a relation."""
    if not n or found[n - 1].literal or found[n - 1].text.upper() not in _BEFORE_A_RELATION:
        return None
    match found[n + 1 : n + 4]:
        case [Word("("), Word(_, _, False) as name, Word(")")]:
            return name
        case _:
            return None
