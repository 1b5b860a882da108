"""The columns of a Delta table: Spark's simple strings and the JSON of Delta's schema.

Source: the Delta transaction log protocol, "Schema Serialization Format".
"""

from __future__ import annotations

import json
from typing import Any, Final

from strandline.algebra.schema import quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.materialize.drivers.staged.shape import Shape

_TO_DELTA: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
_FROM_DELTA: Final = {theirs: ours for ours, theirs in _TO_DELTA.items()}


def schema_json(shape: Shape) -> str:
    """Return the schema of a table with these columns, all of which may be NULL.

    >>> schema_json((("a", "bigint"),))
    '{"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": true, "metadata": {}}]}'
    """
    return json.dumps(_struct([(name, parse(name, kind)) for name, kind in shape]))


def fields_json(shape: Shape) -> list[str]:
    """Return each column as the JSON of a field."""
    return [json.dumps(each) for each in _struct([(name, parse(name, kind)) for name, kind in shape])["fields"]]


def shape_of_json(text: str) -> Shape:
    """Return the columns in a schema's JSON.

    >>> shape_of_json(schema_json((("a", "array<struct<`b`:decimal(9,2)>>"), ("c", "timestamp_ntz"))))
    (('a', 'array<struct<`b`:decimal(9,2)>>'), ('c', 'timestamp_ntz'))
    >>> shape_of_json('{"fields": [{"name": "a", "type": "long", "nullable": false}]}')
    (('a', 'bigint NOT NULL'),)
    """
    return tuple(
        (each["name"], _text(each["type"]) + ("" if each["nullable"] else " NOT NULL"))
        for each in json.loads(text)["fields"]
    )


def _struct(fields: list[tuple[str, Type]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": _delta(kind), "nullable": True, "metadata": {}} for name, kind in fields],
    }


def _delta(kind: Type) -> Any:
    match kind:
        case Atom(name):
            return _TO_DELTA.get(name, name)
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return {"type": "array", "elementType": _delta(element), "containsNull": True}
        case Struct(fields):
            return _struct(list(fields))


def _text(kind: Any) -> str:
    match kind:
        case str():
            return _FROM_DELTA.get(kind, kind)
        case {"type": "array", "elementType": element}:
            return f"array<{_text(element)}>"
        case {"type": "struct", "fields": fields}:
            inner = (f"{quote(each['name'])}:{_text(each['type'])}" for each in fields)
            return f"struct<{','.join(inner)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_text(key)},{_text(value)}>"
        case _:
            return json.dumps(kind)
