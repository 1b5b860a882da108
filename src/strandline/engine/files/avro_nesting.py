"""Avro schemas that name themselves: their values nest as deep as the writer likes.

fastavro's compiled reader takes stack for each level and does not look how much is left, so some kilobytes would end
the process.  Its reader in Python is slow, and raises `RecursionError` instead.

Source: the Avro specification, "complex types" (named types).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


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
