"""Keys: what a peek asks for, as a table with a row for each key, and how tables cross between processes.

A value is of the column's own type: a number that the column could not hold is refused, and so is a text for a number.
Otherwise ``1.5`` would find the rows with 1, and 16777217.0 in a column of FLOAT those with 16777216.0.  So a value
that Arrow rounds on its way into the column is refused, too: whatever is found equals what was asked for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Schema
from strandline.algebra.types import Atom
from strandline.errors import InvalidUsage, ProtocolViolation

SCHEMAS_REMEMBERED: Final = 1_000
"""Of how many schemas it is remembered what they are in Arrow; those that were asked for last."""
_TAKEN: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "tinyint": (Integral,),
    "smallint": (Integral,),
    "int": (Integral,),
    "bigint": (Integral,),
    "float": (Real,),
    "double": (Real,),
    "string": (str,),
    "date": (dt.date,),
    "timestamp": (dt.datetime,),
    "timestamp_ntz": (dt.datetime,),
}
"""What a value of Python's may be for a column of each type; a decimal takes whole numbers and `Decimal`."""
_ROUNDED: Final = tuple(Atom(name) for name in ("float", "double", "timestamp", "timestamp_ntz"))
"""The types for which Arrow takes another value than the one given, the nearest, without a word."""


def refusal(schema: Schema, key: Sequence[str]) -> str:
    """Return why a collection cannot be kept in memory by ``key``; empty if it can.

    >>> from strandline.algebra.schema import Column
    >>> rows = Schema((Column("a", "int"), Column("b", "binary")))
    >>> refusal(rows, ["a"]), refusal(rows, ["b"])
    ('', "rows cannot be found by column 'b', which is binary")
    """
    kinds = _kinds(schema)
    for name, kind in kinds.items():
        if not isinstance(kind, Atom | types.Decimal):
            return f"column {name!r} is an array or a struct, so its rows cannot be kept in memory"
    for name in key:
        if not _taken(kinds[name]):
            return f"rows cannot be found by column {name!r}, which is {_called(kinds[name])}"
    return ""


@lru_cache(maxsize=SCHEMAS_REMEMBERED)
def rows_schema(schema: Schema, names: tuple[str, ...] | None = None) -> pa.Schema:
    """Return the Arrow schema of rows of a collection; ``names``: of these columns alone, in this order."""
    kinds = _kinds(schema)
    return pa.schema([pa.field(name, arrow(kinds[name])) for name in (schema.names if names is None else names)])


@lru_cache(maxsize=SCHEMAS_REMEMBERED)
def _kinds(schema: Schema) -> Mapping[str, types.Type]:
    return dict(types.columns(schema))


def key_table(schema: Schema, key: Sequence[str], given: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the keys ``given``, each with a value for every column of ``key``, as a table of these columns.

    Names are compared without case.  None is NULL, and finds the rows with NULL.

    Raises `InvalidUsage` if a column is missing or too much, or a value is none of its column's; it names the column.
    """
    kinds = _kinds(schema)
    found: dict[str, list[Any]] = {name: [] for name in key}
    for each in given:
        lower = {name.lower(): value for name, value in each.items()}
        if lower.keys() != {name.lower() for name in key} or len(lower) < len(each):
            raise InvalidUsage(f"a key has the columns {', '.join(key)}, and this one has {', '.join(each) or 'none'}")
        for name in key:
            _refuse_other(name, kinds[name], lower[name.lower()])
            found[name].append(lower[name.lower()])
    wanted = rows_schema(schema, tuple(key))
    return pa.Table.from_arrays([_array(wanted.field(name), kinds[name], found[name]) for name in key], schema=wanted)


def _refuse_other(name: str, kind: types.Type, value: object) -> None:
    taken = _taken(kind)
    if value is None:
        return
    right = isinstance(value, taken) and (not isinstance(value, bool) or bool in taken)
    if taken == (dt.date,) and isinstance(value, dt.datetime):
        right = False
    if taken == (dt.datetime,) and isinstance(value, dt.datetime) and kind == Atom("timestamp_ntz"):
        right = value.tzinfo is None
    if not right:
        article = "an" if type(value).__name__[0] in "aeiou" else "a"
        raise InvalidUsage(
            f"column {name!r} of the key is {_called(kind)}, and the value given is {article} {type(value).__name__}: "
            f"{str(value)[:60]!r}"
        )


def _taken(kind: types.Type) -> tuple[type, ...]:
    """Return what a value of Python's may be for a column; nothing: rows cannot be found by it."""
    match kind:
        case Atom(name):
            return _TAKEN.get(name, ())
        case types.Decimal():
            return Integral, Decimal
        case _:
            return ()


def _array(field: pa.Field, kind: types.Type, values: Sequence[Any]) -> pa.Array:
    try:
        found = pa.array(values, field.type)
        if kind in _ROUNDED and not all(map(same, values, found.to_pylist())):
            raise ValueError("a value is rounded")
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        for value in values if len(values) > 1 else ():
            _array(field, kind, [value])  # the first that is none of the column's is named
        given = ", ".join(str(value)[:60] for value in values)
        raise InvalidUsage(f"column {field.name!r} of the key is {_called(kind)}, which cannot hold {given}") from error
    return found


def same(value: Any, held: Any) -> bool:
    """Tell whether a column holds ``value`` itself; a NaN is one whatever its bits, a time without zone is UTC's."""
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return bool(value == held.replace(tzinfo=None))
    return value is None or bool(value == held) or (value != value and held != held)  # noqa: PLR0124


def _called(kind: types.Type) -> str:
    match kind:
        case Atom(name):
            return name
        case types.Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case _:
            return "nested"


def packed(table: pa.Table) -> bytes:
    """Return a table as bytes, in the format of Arrow IPC.

    >>> unpacked(packed(pa.table({"a": [1]}))).to_pylist()
    [{'a': 1}]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpacked(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """Return the table that `packed` made.

    Raises `ProtocolViolation` for other bytes, since another process sent them, and for a table of another ``schema``.
    """
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolViolation(f"these are no rows in the format of Arrow IPC: {error}") from error
    if schema is not None and not table.schema.equals(schema):
        raise ProtocolViolation(f"these rows have other columns than {', '.join(schema.names)}, or of other types")
    return table
