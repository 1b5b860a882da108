"""Sampled columns: what schema some data seem to have, for a person to look at before they define a source.

A sample is a guess: a column that was a number in all of it may be a text in the next record.  Where records differ, or
a type has no counterpart, the guess is ``string``, which every text is.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyarrow import csv, json

from strandline.algebra.schema import Column, Schema, quote

SAMPLE_BYTES: Final = 1 << 20
"""How much of the data is looked at."""
_WHOLE: Final = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
_OTHERS: Final = {pa.float32(): "float", pa.float64(): "double", pa.bool_(): "boolean", pa.date32(): "date"}
_NAMED: Final = {**_WHOLE, **_OTHERS, pa.uint8(): "smallint", pa.uint16(): "int", pa.uint32(): "bigint"}


def columns(found: pa.Schema) -> Schema:
    """Return the columns that hold what ``found`` holds.

    >>> columns(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.null())])).ddl
    '`id` bigint, `at` timestamp, `n` string'
    """
    return Schema(tuple(Column(field.name, type_of(field.type)) for field in found))


def type_of(kind: pa.DataType) -> str:
    """Return the type of a column that holds values of ``kind``.

    >>> type_of(pa.list_(pa.struct([("a b", pa.decimal128(10, 2))])))
    'array<struct<`a b`:decimal(10,2)>>'
    """
    if kind in _NAMED:
        return _NAMED[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{type_of(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_field(each.name)}:{type_of(each.type)}' for each in kind)}>"
    return "string"


def of_csv(sample: bytes, *, delimiter: str = ",", header: bool = True) -> Schema:
    r"""Return the columns of a CSV file, from its first lines; a last line that is cut is left out.

    >>> of_csv(b"id,city\n1,Delft\n2,Gh", header=True).ddl
    '`id` bigint, `city` string'

    Raises `ValueError` if it cannot be read.
    """
    read = csv.ReadOptions(autogenerate_column_names=not header)
    parse = csv.ParseOptions(delimiter=delimiter)
    try:
        return columns(csv.read_csv(io.BytesIO(_whole_lines(sample)), read, parse).schema)
    except pa.ArrowInvalid as error:
        raise ValueError(f"this is no CSV that can be read: {error}") from error


def of_json(records: Iterable[bytes]) -> Schema:
    """Return the columns of JSON objects; a field that differs from one to the next is a string.

    >>> of_json([b'{"id": 1, "tags": ["a"]}', b'{"id": 2, "x": null}']).ddl
    '`id` bigint, `tags` array<string>, `x` string'

    Raises `ValueError` if one of them is no object.
    """
    found: dict[str, str] = {}
    for record in records:
        try:
            schema = json.read_json(io.BytesIO(record)).schema
        except pa.ArrowInvalid as error:
            raise ValueError(f"this is no JSON object: {record[:80]!r} ({error})") from error
        for field in schema:
            found[field.name] = _either(found.get(field.name, ""), field.type)
    return Schema(tuple(Column(name, kind or "string") for name, kind in found.items()))


def _either(known: str, kind: pa.DataType) -> str:
    """Return the type that holds a value of ``kind`` too; empty: only nulls were seen, which say nothing."""
    new = "" if pa.types.is_null(kind) else type_of(kind)
    if "" in {known, new} or known == new:
        return known or new
    return "double" if {known, new} == {"bigint", "double"} else "string"


def _field(name: str) -> str:
    return name if name.isidentifier() else quote(name)


def _whole_lines(sample: bytes) -> bytes:
    """Return the sample up to the end of its last whole line; all of it if there is none behind the first."""
    first, last = sample.find(b"\n"), sample.rfind(b"\n")
    return sample[: last + 1] if last > first else sample
