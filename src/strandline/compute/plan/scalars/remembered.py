"""What Spark has answered about texts: once answered, always answered so, without Spark.

Each view is planned anew when an environment opens, and each plan asks Spark for types and equalities.  A JVM that has
just begun takes seconds for that.  Its answers follow from the question and from the *authority*: Spark's version, the
settings that change answers, the functions of the caller, and our code that asks.  So they may be kept for as long as
the authority is the same.  Where Spark's answer to one question may change, it no longer does: a view that was accepted
stays accepted, as it was planned.

What is kept is `Answers`; who makes it durable is `controller/location/answers.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from strandline.algebra.doubts import Doubt
from strandline.algebra.nodes import Node
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.scalars.analyst import TypeAnalyst
from strandline.errors import DefinitionError, Position

SIZE_MAX: Final = 1 << 20
"""Bytes, encoded: answers beyond that are not kept."""


class _Refused(msgspec.Struct, frozen=True, tag=True):
    message: str
    line: int | None = None
    column: int | None = None


class _Columns(msgspec.Struct, frozen=True, tag=True):
    columns: tuple[tuple[str, str], ...]


class _Word(msgspec.Struct, frozen=True, tag=True):
    word: str | bool | None


_Answer = _Refused | _Columns | _Word


class _Kept(msgspec.Struct, frozen=True):
    authority: str
    answers: dict[str, _Answer]


class Answers:
    """The answers of one authority by question; ``authority`` is empty if none are to be kept.

    ``trusted``: before Spark is started its authority is not known.  Until then the answers of any are recalled whose
    text begins so: they say how the process that kept them planned its views.
    """

    def __init__(self, authority: str = "", *, trusted: str = "") -> None:
        self.authority = authority
        self._trusted = trusted
        self._of = authority
        self._held: dict[str, _Answer] = {}
        self._asked: set[str] = set()
        self._learned = False

    @property
    def learned(self) -> bool:
        """Whether there are answers that were not encoded yet."""
        return self._learned and bool(self.authority)

    def encode(self) -> bytes | None:
        """Return the answers to what was asked here, for others to `recall`; None if they are too many to keep."""
        self._learned = False
        kept = _Kept(self.authority, {question: self._held[question] for question in sorted(self._asked)})
        encoded = zlib.compress(msgspec.msgpack.encode(kept))
        return encoded if len(encoded) <= SIZE_MAX else None

    def recall(self, encoded: bytes) -> None:
        """Know the answers that `encode` returned, if they are of the same authority.

        What cannot be read is not known: Spark is asked again.
        """
        try:
            kept = msgspec.msgpack.decode(zlib.decompress(encoded), type=_Kept)
        except (zlib.error, msgspec.MsgspecError):
            return
        if kept.authority == self.authority or (self._trusted and kept.authority.startswith(self._trusted)):
            self._held, self._of = kept.answers | self._held, kept.authority

    @property
    def recalls(self) -> bool:
        """Whether answers of others are of use here."""
        return bool(self.authority or self._trusted)

    def ask(self, authority: str) -> None:
        """Take ``authority`` from now on, and forget the answers that were another one's."""
        if self._of != authority:
            self._held = {}
        self._trusted, self._of = "", authority

    def to(self, question: tuple[Any, ...], ask: Callable[[], _Answer | None]) -> _Answer | None:
        """Return the answer to a question; ``ask`` returns what Spark answers, and None for what is not kept."""
        known = blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()
        found = self._held.get(known)
        if found is None:
            found = ask()
            if found is None:
                return None
            self._held[known], self._learned = found, True
        self._asked.add(known)
        return found


class RememberedAnalyst:
    """An analyst that asks ``inner`` what it does not remember."""

    def __init__(self, inner: TypeAnalyst, answers: Answers) -> None:
        self._inner = inner
        self._answers = answers

    @property
    def functions(self) -> frozenset[str]:
        """See `Analyst.functions`."""
        return self._inner.functions

    def schema_of(self, sql: str, relations: Mapping[str, Schema]) -> Schema:
        """See `Analyst.schema_of`."""

        def ask() -> _Answer:
            try:
                found = self._inner.schema_of(sql, relations)
            except DefinitionError as error:
                if type(error) is not DefinitionError:
                    raise  # it says more than its message
                at = error.position
                return _Refused(error.message, *((None, None) if at is None else (at.line, at.column)))
            return _Columns(tuple((each.name, each.type) for each in found))

        match self._answers.to(("schema", sql, _texts(relations)), ask):
            case _Columns(columns):
                return Schema(tuple(Column(*each) for each in columns))
            case _Refused(message, line, column):
                at = None if line is None or column is None else Position(line, column)
                raise DefinitionError(message, at)
            case other:
                raise AssertionError(f"a schema is not {other!r}")

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """See `Analyst.doubts`: that there are none is remembered."""
        found: list[Doubt] = []

        def ask() -> _Answer | None:
            found.extend(self._inner.doubts(sql, relations, ordering=ordering))
            return None if found else _Word(word=True)

        self._answers.to(("doubts", sql, _texts(relations), ordering), ask)
        return tuple(found)

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """See `Analyst.same`."""
        question = "same", sql, other, _texts(relations)
        return self._word(question, lambda: self._inner.same(sql, other, relations)) is True

    def compared(self, left: str, right: str) -> str | None:
        """See `Analyst.compared`."""
        found = self._word(("compared", left, right), lambda: self._inner.compared(left, right))
        return found if isinstance(found, str) else None

    def rehearse(self, step: Node, frames: Mapping[str, Schema], stored: Schema) -> None:
        """See `Analyst.rehearse`: it is asked when a view is defined, and never again."""
        self._inner.rehearse(step, frames, stored)

    def parse_ddl(self, ddl: str) -> Schema:
        """See `TypeAnalyst.parse_ddl`: it is asked when something is defined."""
        return self._inner.parse_ddl(ddl)

    def _word(self, question: tuple[Any, ...], ask: Callable[[], str | bool | None]) -> str | bool | None:
        found = self._answers.to(question, lambda: _Word(ask()))
        assert isinstance(found, _Word), "a question has answers of one kind"
        return found.word


def _texts(relations: Mapping[str, Schema]) -> list[tuple[str, str]]:
    return sorted((name, schema.ddl) for name, schema in relations.items())
