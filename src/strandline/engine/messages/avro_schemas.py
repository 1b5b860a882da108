"""Avro schemas as fastavro takes them, with what it leaves to its caller.

*Defaults.*  fastavro gives a field's default as it stands in the schema's JSON, where a date is a number and bytes are
a text of their code points.  So the defaults of a reader's schema are put in its place as values.

*Nesting.*  A schema may name itself: a value then nests as deep as its writer likes.  fastavro's compiled reader takes
stack for each level and does not look how much is left, so a message of some kilobytes would end the process.

Source: the Avro specification, "complex types" and "schema resolution".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from strandline.engine.files.avro_logical import meant
from strandline.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema; ``nests``: its values may hold others of the same type, to any depth."""

    parsed: Any
    nests: bool


def understood(text: str, *, defaults: bool = False) -> AvroSchema:
    """Return a schema; ``defaults``: those of its fields are values.

    >>> field = {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1}
    >>> text = json.dumps({"type": "record", "name": "r", "fields": [field]})
    >>> understood(text, defaults=True).parsed["fields"][0]["default"]
    datetime.date(1970, 1, 2)

    Raises `DefinitionError` if it is none.
    """
    named: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
        if defaults:
            fields = [each for kind in named.values() for each in kind.get("fields", ()) if "default" in each]
            values = [_value(each["default"], each["type"], named) for each in fields]
            for each, value in zip(fields, values, strict=True):
                each["default"] = value
    except (ValueError, SchemaParseException, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DefinitionError(f"this is no Avro schema ({error}): {text[:200]}") from error
    return AvroSchema(parsed, any(_reaches(name, name, named, set()) for name in named))


def _value(given: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """Return what a default in JSON stands for."""
    if isinstance(schema, list):
        return _value(given, next((each for each in schema if (each == "null") == (given is None)), schema[0]), named)
    if isinstance(schema, str):
        return _value(given, named[schema], named) if schema in named else _value(given, {"type": schema}, named)
    match schema["type"]:
        case "record" | "error":
            fields = [each for each in schema["fields"] if each["name"] in given or "default" in each]
            return {
                each["name"]: _value(given.get(each["name"], each.get("default")), each["type"], named)
                for each in fields
            }
        case "array":
            return [_value(each, schema["items"], named) for each in given]
        case "map":
            return {name: _value(each, schema["values"], named) for name, each in given.items()}
        case "bytes" | "fixed":
            value: Any = given.encode("latin-1")
        case "float" | "double":
            value = float(given)
        case _:
            value = given
    return meant(value, schema)


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
