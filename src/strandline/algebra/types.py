"""Column types: the small tree that a type's text writes, if a collection can hold it.

A type is a small tree (`Atom`, `Decimal`, `Array`, `Struct`) read from Spark's simple string; a struct's field names
may be quoted.  What has no total order or no one binary form per value (maps, variants, collated strings) is refused by
name.  This is the only reader of type texts.  sqlglot's loses fields whose names are words of SQL:
``struct<a:int,select:int>`` becomes a struct of ``a`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError

_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
_ATOMS: Final = _NUMBERS | {"boolean", "string", "binary", "date", "timestamp", "timestamp_ntz"}
_SYNONYMS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
REFUSED: Final = {
    "map": "a map has no order; use an array of structs",
    "variant": "a variant has several binary forms for one value; parse it into columns",
    "char": "its length is not kept; use string",
    "varchar": "its length is not kept; use string",
    "interval": "an interval has no portable form; use a number of units",
    "time": "a time of day has no portable form; use a number of seconds",
    "void": "it has no type yet; cast it to the one you mean",
    "collate": "collations compare unequal bytes as equal; use plain string",
}
"""Why a type is refused, and what to use instead; "collate": a string with a collation."""
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|[^\s<>,:()`]+|[<>,:()])")


@dataclass(frozen=True, slots=True)
class Atom:
    """A type without parameters, by its canonical name."""

    name: str


@dataclass(frozen=True, slots=True)
class Decimal:
    """An exact number of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Array:
    """A list of ``element``; both the list and its elements may be NULL."""

    element: Type


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields in order."""

    fields: tuple[tuple[str, Type], ...]


Type: TypeAlias = Atom | Decimal | Array | Struct


def parse(column: str, text: str) -> Type:
    """Return the type that ``text`` writes, or raise `DefinitionError` naming ``column`` if it cannot be kept.

    >>> parse("a", "array<struct<x:int,`y z`:decimal(10,2)>>")
    Array(element=Struct(fields=(('x', Atom(name='int')), ('y z', Decimal(precision=10, scale=2)))))
    >>> parse("m", "map<string,int>")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: column 'm': type map<string,int> cannot be kept: a map has no order; use ...
    """
    tokens = _TOKEN.findall(text)
    reader = _Reader(column, text, tokens)
    parsed = reader.type()
    reader.end()
    return parsed


@dataclass(slots=True)
class _Reader:
    """Recursive descent over the tokens of one type."""

    column: str
    text: str
    tokens: list[str]
    at: int = 0

    def type(self) -> Type:
        name = self._next().lower()
        name = _SYNONYMS.get(name, name)
        if name in {"decimal", "numeric", "dec"}:
            return self._decimal()
        if name == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return Array(element)
        if name == "struct":
            self._expect("<")
            fields = tuple(self._fields())
            self._expect(">")
            if not fields:
                raise self._refused("Parquet has no struct without fields")
            names = [field.lower() for field, _ in fields]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise self._refused(f"two fields of a struct are called {twice!r} (without regard to case); rename one")
            return Struct(fields)
        collated = name == "string" and self._peek().lower() == "collate"
        if name in _ATOMS and not collated:
            return Atom(name)
        raise self._refused(REFUSED.get("collate" if collated else name))

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise self._refused(None)

    def _decimal(self) -> Decimal:
        if self._peek() != "(":
            return Decimal(10, 0)
        self._expect("(")
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        return Decimal(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise self._refused(None)
        return int(token)

    def _fields(self) -> Iterator[tuple[str, Type]]:
        while self._peek() != ">":
            name = self._next()
            self._expect(":")
            yield name[1:-1].replace("``", "`") if name.startswith("`") else name, self.type()
            if self._peek() == ",":
                self._expect(",")

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._refused(None)

    def _refused(self, reason: str | None) -> DefinitionError:
        return DefinitionError(
            f"column {self.column!r}: type {self.text} cannot be kept: {reason or 'no collection can hold it'}"
        )


def columns(schema: Schema) -> tuple[tuple[str, Type], ...]:
    """Return each column with its type; `DefinitionError` names the first column that cannot be kept."""
    return tuple((c.name, parse(c.name, c.type)) for c in schema)


def decimal_digits(text: str) -> tuple[int, int] | None:
    """Return the precision and the scale of a decimal type; None for another type.

    >>> decimal_digits("decimal(10,2)"), decimal_digits("int"), decimal_digits("map<int,int>")
    ((10, 2), None, None)
    """
    try:
        kind = parse("", text)
    except DefinitionError:
        return None
    return (kind.precision, kind.scale) if isinstance(kind, Decimal) else None
