"""Column types: which of Spark's types a collection can hold, and what each becomes at rest and in a digest.

A type is a small tree (`Atom`, `Decimal`, `Array`, `Struct`) read from Spark's simple string.  It answers three
questions as text or plain data, with no JVM: how a value is *normalised* at the door (−0.0 → 0.0, one NaN), how it is
*hashed* into a digest, and which Arrow type carries it.  What has no total order or no one binary form per value (maps,
variants, collated strings) is refused by name.

Two traps in Spark's ``xxhash64`` shape `hashed`: it skips NULLs and does not mark where an array ends, so nested values
are hashed with their null flags and sizes; and it hashes ``int`` 1 and ``bigint`` 1 differently, so numbers are hashed
in their widest form and a column may be widened without changing any digest.

Source: design pages "the map" (law D: rows are normalised at the door) and "persist" (digest, evolution).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from strandline.algebra.schema import Schema, quote
from strandline.errors import DefinitionError

_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SYNONYMS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_WIDEST: Final = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}
_REFUSED: Final = {
    "map": "a map has no order; use an array of structs",
    "variant": "a variant has several binary forms for one value; parse it into columns",
    "char": "its length is not kept; use string",
    "varchar": "its length is not kept; use string",
    "interval": "an interval has no portable form; use a number of units",
    "void": "it has no type yet; cast it to the one you mean",
}
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
            return Struct(fields)
        collated = name == "string" and self._peek().lower() == "collate"
        if name in _ARROW and not collated:
            return Atom(name)
        raise self._refused(
            "collations compare unequal bytes as equal; use plain string" if collated else _REFUSED.get(name)
        )

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


def normalised(value: str, kind: Type, depth: int = 0) -> str:
    """Return SQL for ``value`` (SQL of type ``kind``) with −0.0 as 0.0 and one NaN, at any depth; all else as it is.

    >>> normalised("`a`", Atom("int"))
    '`a`'
    >>> normalised("`a`", Atom("double"))
    "CASE WHEN isnan(`a`) THEN double('NaN') WHEN `a` = 0 THEN double(0) ELSE `a` END"
    """
    match kind:
        case Atom("float" | "double" as name):
            return f"CASE WHEN isnan({value}) THEN {name}('NaN') WHEN {value} = 0 THEN {name}(0) ELSE {value} END"
        case Array(element) if has_floats(element):
            item = f"x{depth}"
            return f"transform({value}, {item} -> {normalised(item, element, depth + 1)})"
        case Struct(fields) if has_floats(kind):
            inner = ", ".join(
                f"{_literal(name)}, {normalised(f'({value}).{quote(name)}', field, depth)}" for name, field in fields
            )
            return f"if({value} IS NULL, NULL, named_struct({inner}))"
        case _:
            return value


def hashed(value: str, kind: Type, depth: int = 0) -> str:
    """Return SQL whose ``xxhash64`` tells any two normalised values apart: wide numbers, null flags, sizes.

    >>> hashed("`a`", Atom("int")), hashed("`a`", Atom("string"))
    ('CAST(`a` AS bigint)', '`a`')
    """
    match kind:
        case Atom(name) if name in _WIDEST:
            return f"CAST({value} AS {_WIDEST[name]})"
        case Array(element):
            item = f"x{depth}"
            inner = f"struct({item} IS NULL, {hashed(item, element, depth + 1)})"
            return f"struct(size({value}), transform({value}, {item} -> {inner}))"
        case Struct(fields):
            flags = (
                f"({value}).{quote(name)} IS NULL, {hashed(f'({value}).{quote(name)}', field, depth)}"
                for name, field in fields
            )
            return f"struct({', '.join(flags)})"
        case _:
            return value


def has_floats(kind: Type) -> bool:
    """Tell whether a value of this type can hold a float at any depth."""
    match kind:
        case Atom(name):
            return name in {"float", "double"}
        case Decimal():
            return False
        case Array(element):
            return has_floats(element)
        case Struct(fields):
            return any(has_floats(field) for _, field in fields)


def arrow(kind: Type) -> pa.DataType:
    """Return the Arrow type that carries it.

    >>> arrow(Array(Decimal(10, 2)))
    ListType(list<element: decimal128(10, 2)>)
    """
    match kind:
        case Atom(name):
            return _ARROW[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(pa.field("element", arrow(element)))
        case Struct(fields):
            return pa.struct([pa.field(name, arrow(field)) for name, field in fields])


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
