"""Avro's types: what values of logical types stand for, and types whose values nest as deep as the writer likes.

*Logical types.*  fastavro rounds a decimal that has more digits than the precision of its schema, to which no writer is
bound.  Avro's own library for Java gives the number as it was written, and so does this; whether a column holds it is
for the column to say.  What reads Avro by fastavro imports this module first.

*Types that name themselves.*  fastavro's compiled reader takes stack for each level and does not look how much is left,
so some kilobytes would end the process.  Its reader in Python is slow, and raises `RecursionError` instead.

Source: the Avro specification, "decimal" and "complex types" (named types);
https://fastavro.readthedocs.io/en/latest/logical_types.html (custom types).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from fastavro.read import LOGICAL_READERS


def decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    """Return the number that the bytes of a decimal hold.

    >>> decimal(bytes([0x30, 0x39]), {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1})
    Decimal('1234.5')
    """
    digits = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((digits.sign, digits.digits, -schema.get("scale", 0)))


def meant(value: Any, schema: Any) -> Any:
    """Return what a value of this type stands for: the value itself, if its type is no logical one.

    >>> meant(1, {"type": "int", "logicalType": "date"}), meant(1, {"type": "int"})
    (datetime.date(1970, 1, 2), 1)
    """
    read = LOGICAL_READERS.get(f"{schema['type']}-{schema.get('logicalType')}")
    return value if read is None else read(value, schema, None)


LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = decimal


def nests(named: Mapping[str, Any]) -> bool:
    """Return whether one of these named types, as fastavro has parsed them, holds itself in whatever depth.

    >>> nests({"r": {"fields": [{"type": ["null", {"items": "r"}]}]}})
    True
    >>> nests({"r": {"fields": [{"type": {"name": "s"}}]}, "s": {"fields": [{"type": "int"}]}})
    False
    """
    return any(_reaches(name, name, named, set()) for name in named)


def _reaches(start: str, goal: str, named: Mapping[str, Any], seen: set[str]) -> bool:
    """Return whether the type ``start`` holds the type ``goal``, in whatever depth."""
    for name in _held(named[start], named):
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            if _reaches(name, goal, named, seen):
                return True
    return False


def _held(schema: Any, named: Mapping[str, Any]) -> Iterator[str]:
    """Yield the named types that a type holds, but for those inside of these."""
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, dict):
        inner = [*(each["type"] for each in schema.get("fields", ())), schema.get("items"), schema.get("values")]
    else:
        inner = []
    for each in inner:
        name = each.get("name") if isinstance(each, dict) else each
        if isinstance(name, str) and name in named:
            yield name
        else:
            yield from _held(each, named)
