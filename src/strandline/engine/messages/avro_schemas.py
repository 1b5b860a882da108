"""Avro schemas as fastavro takes them, with what it leaves to its caller.

fastavro gives a field's default as it stands in the schema's JSON, where a date is a number and bytes are
a text of their code points.  So the defaults of a reader's schema are put in its place as values.

Source: the Avro specification, "schema resolution".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from strandline.engine.files.avro_types import meant, nests
from strandline.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema; ``nests``: see `strandline.engine.files.avro_types`."""

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
    return AvroSchema(parsed, nests(named))


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
