"""The columns of an Avro record, by its schema: each has a type that its values are read as.

Files and messages share it, and `docs/formats.md` has the table.  A field that is no column (a union of several types,
a record within itself) has no type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any, Final, TypeAlias

from strandline.algebra.stored import struct_text

Named: TypeAlias = Mapping[str, Any]
"""The types that a schema gives names, by these."""
_DECIMAL_DIGITS_MAX: Final = 38
_ATOMS: Final = {
    "null": "string",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
    ("int", "time-millis"): "string",
    ("long", "time-micros"): "string",
    ("string", "uuid"): "string",
}
"""Logical types that readers know, by what they annotate; any other one is what it annotates."""


def columns_of_file(opened: IO[bytes]) -> list[tuple[str, str | None]] | None:
    """Return `columns_of` the schema that an Avro file was written by.  What is no Avro file raises any exception."""
    import fastavro  # `strandline status` needs no Avro, and this is a tenth of its time

    return columns_of(fastavro.reader(opened).metadata["avro.schema"])


def columns_of(text: str, within: str | None = None) -> list[tuple[str, str | None]] | None:
    """Return the name and the type of each field; None: it is no record.

    ``within``: of the record that the field of this name holds, or null.

    >>> day = {"type": "int", "logicalType": "date"}
    >>> fields = [{"name": "id", "type": "long"}, {"name": "day", "type": ["null", day]}]
    >>> fields += [{"name": "tags", "type": {"type": "map", "values": "int"}}, {"name": "x", "type": ["int", "string"]}]
    >>> columns_of(json.dumps({"type": "record", "name": "r", "fields": fields}))
    [('id', 'bigint'), ('day', 'date'), ('tags', 'array<struct<`key`:string,`value`:int>>'), ('x', None)]
    """
    try:
        record = json.loads(text)
    except ValueError:
        return None  # a schema of another kind
    if not isinstance(record, dict) or record.get("type") != "record":
        return None
    named: dict[str, Any] = {}
    _collect(record, named, "")
    full, space = _full(record, ""), _space(record, "")
    if within is not None:
        held = [each["type"] for each in record["fields"] if each["name"] == within]
        found = _record(held[0], named, space) if held else None
        if found is None:
            return None
        record, full = found
        space = full.rpartition(".")[0]
    return [(str(each["name"]), _type(each["type"], named, (full,), space)) for each in record["fields"]]


def _collect(declared: Any, named: dict[str, Any], space: str) -> None:
    """Note the types with names, by their full names."""
    match declared:
        case list():
            for each in declared:
                _collect(each, named, space)
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            _collect(inner, named, space)
        case {"type": "record" | "enum" | "fixed", "name": str()}:
            named[_full(declared, space)] = declared
            for each in declared.get("fields", ()):
                _collect(each["type"], named, _space(declared, space))
        case {"type": dict() | list() as inner}:
            _collect(inner, named, space)


def _space(declared: Mapping[str, Any], space: str) -> str:
    name = str(declared["name"])
    return name.rpartition(".")[0] if "." in name else str(declared.get("namespace", space))


def _full(declared: Mapping[str, Any], space: str) -> str:
    own = _space(declared, space)
    return f"{own}.{declared['name'].rpartition('.')[2]}" if own else str(declared["name"])


def _record(declared: Any, named: Named, space: str) -> tuple[Any, str] | None:
    """Return the record that ``declared`` is, or a union of it and null, and its full name; None: it is none."""
    match declared:
        case list():
            rest = [each for each in declared if each != "null"]
            return _record(rest[0], named, space) if len(rest) == 1 else None
        case str():
            full = declared if declared in named or not space else f"{space}.{declared}"
            found = named.get(full)
            return None if found is None or found["type"] != "record" else (found, full)
        case {"type": "record"}:
            return declared, _full(declared, space)
        case {"type": dict() | list() as inner}:
            return _record(inner, named, space)
    return None


def _type(declared: Any, named: Named, within: tuple[str, ...], space: str) -> str | None:
    """Return the type of a column; ``within``: the records that it is in, by their full names."""
    match declared:
        case str() if declared in _ATOMS:
            return _ATOMS[declared]
        case str():
            full = declared if declared in named or not space else f"{space}.{declared}"
            return _type(named.get(full), named, within, full.rpartition(".")[0])
        case list():
            rest = [each for each in declared if each != "null"]
            return _type(rest[0] if rest else "null", named, within, space) if len(rest) <= 1 else None
        case {"type": "bytes" | "fixed", "logicalType": "decimal", "precision": int(precision)}:
            return f"decimal({precision},{declared.get('scale', 0)})" if precision <= _DECIMAL_DIGITS_MAX else None
        case {"type": "array", "items": items}:
            element = _type(items, named, within, space)
            return element and f"array<{element}>"
        case {"type": "map", "values": values}:
            value = _type(values, named, within, space)
            return value and f"array<{struct_text([('key', 'string'), ('value', value)])}>"
        case {"type": "record", "fields": fields}:
            full, own = _full(declared, space), _space(declared, space)
            if full in within:
                return None
            return struct_text([(str(f["name"]), _type(f["type"], named, (*within, full), own)) for f in fields])
        case {"type": str(kind)}:
            return _LOGICAL.get((kind, str(declared.get("logicalType")))) or _type(kind, named, within, space)
        case {"type": inner}:
            return _type(inner, named, within, space)
    return None
