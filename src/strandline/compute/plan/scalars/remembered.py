"""What Spark has answered about texts: once answered, always answered so, without Spark.

Each view is planned anew when an environment opens, and each plan asks Spark for types and equalities.  A JVM that has
just begun takes seconds for that.  Its answers follow from the question and from the *authority*: Spark's version, the
settings that change answers, the functions of the caller, and our code that asks.  So they may be kept for as long as
the authority is the same.  Where Spark's answer to one question may change, it no longer does: a view that was accepted
stays accepted, as it was planned.

What is kept is `Answers`; who makes it durable is `controller/core.py`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

import msgspec

from strandline.algebra.nodes import Node
from strandline.algebra.scalar import Doubt
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.asked import require_asking
from strandline.compute.plan.scalars.context import TypeAnalyst
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError, Position

SIZE_MAX: Final = 1 << 20
"""Bytes, encoded: answers beyond that are not kept."""
PASSING_MAX: Final = 10_000
"""So many answers are remembered that are not to be kept; then all of these are forgotten."""
MADE_MAX: Final = 16
"""So many things are remembered that were made of answers: each may be the plan of a large view."""


T = TypeVar("T")


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
        self._passing: dict[str, object] = {}
        self._made: dict[str, object] = {}
        self._lock = threading.Lock()
        self._learned = False

    @property
    def learned(self) -> bool:
        """Whether there are answers that were not encoded yet."""
        return self._learned and bool(self.authority)

    def encode(self) -> bytes | None:
        """Return the answers to what was asked here, for others to `recall`; None if they are too many to keep."""
        with self._lock:
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
            with self._lock:
                self._held, self._of = kept.answers | self._held, kept.authority

    @property
    def recalls(self) -> bool:
        """Whether answers of others are of use here."""
        return bool(self.authority or self._trusted)

    def ask(self, authority: str) -> None:
        """Take ``authority`` from now on, and forget the answers that were another one's."""
        with self._lock:
            if self._of != authority:
                self._held, self._passing, self._made = {}, {}, {}
            self._trusted, self._of = "", authority

    def to(self, question: tuple[Any, ...], ask: Callable[[], _Answer | None]) -> _Answer | None:
        """Return the answer to a question; ``ask`` returns what Spark answers, and None for what is not kept."""
        known = _named(question)
        found = self._held.get(known)
        if found is None:
            found = self.passing(question, ask)
            if found is None:
                return None
            with self._lock:
                self._held[known], self._learned = found, True
        with self._lock:
            self._asked.add(known)
        return found

    def passing(self, question: tuple[Any, ...], ask: Callable[[], T]) -> T:
        """Return the answer to a question, or raise the error that is the answer; this process alone remembers it."""
        known, passing = _named(question), self._passing  # another thread may put other answers in their place
        if known not in passing:
            require_asking()
            try:
                answer: object = ask()
            except DefinitionError as error:
                answer = error
            with self._lock:
                if len(self._passing) >= PASSING_MAX:
                    self._passing = {}
                self._passing[known] = answer
        else:
            answer = passing[known]
        if isinstance(answer, DefinitionError):
            raise copy(answer)  # who catches it adds where it is
        return cast("T", answer)

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what ``make`` makes of answers; of the last few that were asked for it is what was made before."""
        known, remembered = _named(question), self._made  # another thread may put others in their place
        with self._lock:
            found = remembered.pop(known, None)
        if found is None:
            found = make()
        with self._lock:
            remembered[known] = found
            while len(remembered) > MADE_MAX:
                remembered.pop(next(iter(remembered)))
        return cast("T", found)


class RememberedAnalyst:
    """An analyst that asks ``inner`` what it does not remember."""

    def __init__(self, inner: TypeAnalyst, answers: Answers) -> None:
        self._inner = inner
        self._answers = answers

    @property
    def functions(self) -> frozenset[str]:
        """See `Analyst.functions`."""
        return self._inner.functions

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """See `Analyst.schema_of`."""

        def ask() -> _Answer:
            try:
                found = self._inner.schema_of(sql, relations, ours=ours)
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
        """See `Analyst.doubts`: that there are none is kept."""
        question = "doubts", sql, _texts(relations), ordering

        def found() -> tuple[Doubt, ...]:
            which = "which", *question
            return self._answers.passing(which, lambda: self._inner.doubts(sql, relations, ordering=ordering))

        none = self._answers.to(question, lambda: None if found() else _Word(word=True))
        return found() if none is None else ()

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """See `Analyst.same`."""
        question = "same", sql, other, _texts(relations)
        return self._word(question, lambda: self._inner.same(sql, other, relations)) is True

    def compared(self, left: str, right: str) -> str | None:
        """See `Analyst.compared`."""
        found = self._word(("compared", left, right), lambda: self._inner.compared(left, right))
        return found if isinstance(found, str) else None

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """See `Analyst.made`: the last few are remembered, so that who asked beside the loop has it at once there."""
        return self._answers.made(question, make)

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """See `Analyst.rehearse`: it is asked when a view is defined, and not kept."""

        def ask() -> bool:
            self._inner.rehearse(steps, frames, stored)
            return True

        texts = [render(step, {name: name for name in frames}) for step in steps]
        self._answers.passing(("rehearse", texts, _texts(frames), stored.ddl), ask)

    def parse_ddl(self, ddl: str) -> Schema:
        """See `TypeAnalyst.parse_ddl`: it is asked when something is defined."""
        return self._inner.parse_ddl(ddl)

    def _word(self, question: tuple[Any, ...], ask: Callable[[], str | bool | None]) -> str | bool | None:
        found = self._answers.to(question, lambda: _Word(ask()))
        assert isinstance(found, _Word), "a question has answers of one kind"
        return found.word


def _named(question: tuple[Any, ...]) -> str:
    return blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()


def _texts(relations: Mapping[str, Schema]) -> list[tuple[str, str]]:
    return sorted((name, schema.ddl) for name, schema in relations.items())
