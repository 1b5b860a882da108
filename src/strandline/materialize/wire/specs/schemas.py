"""Columns as JSON Schema and as what connectors infer from it, and back.

Every column may be NULL, and is in every document.  What a connector needs to choose its own type stands in the usual
keywords: ``type``, ``format``, ``contentEncoding``, ``minimum`` and ``maximum``.  Our own type stands in
`TYPE`, which others skip, so a driver of ours behind the wire gets exactly the column that it would get without it.

| column | schema |
| --- | --- |
| tinyint, smallint, int | integer with bounds |
| bigint | integer |
| float, double | number, or a string of the format number (NaN, Infinity) |
| decimal | a string of the format integer, or number if it has digits after the point |
| binary | a string in base64 |
| date, timestamp | a string of the format date, date-time |
| timestamp_ntz | a string: a format for a time without a zone is not known |
| array, struct | array, object |

Source: JSON Schema 2020-12; Estuary Flow's formats of numbers in strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from strandline.algebra.schema import Column
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.errors import DefinitionError
from strandline.materialize.wire.codec.messages import Inference, Message

TYPE: Final = "x-strandline-type"
KEY: Final = "x-strandline-key"
"""The columns of the binding's key, among the properties that make a key."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32}
_FORMATS: Final = {"date": "date", "timestamp": "date-time"}
_SCALARS: Final[Mapping[tuple[tuple[str, ...], str], str]] = {
    (("boolean",), ""): "boolean",
    (("integer",), ""): "bigint",
    (("number",), ""): "double",
    (("integer", "number"), ""): "double",
    (("number", "string"), "number"): "double",
    (("integer", "string"), "integer"): "decimal(38,0)",
    (("string",), "integer"): "decimal(38,0)",
    (("string",), "date"): "date",
    (("string",), "date-time"): "timestamp",
    (("string",), ""): "string",
}
"""The column for what another runtime infers; a format that is not here is a string's."""


def column_schema(kind: Type) -> dict[str, Any]:
    """Return the schema of a column's values.

    >>> column_schema(Atom("tinyint"))
    {'type': ['integer', 'null'], 'minimum': -128, 'maximum': 127}
    >>> column_schema(Decimal(10, 2))
    {'type': ['string', 'null'], 'format': 'number'}
    """
    match kind:
        case Atom("boolean"):
            return {"type": ["boolean", "null"]}
        case Atom("bigint"):
            return {"type": ["integer", "null"]}
        case Atom("tinyint" | "smallint" | "int" as name):
            bound = 1 << (_BITS[name] - 1)
            return {"type": ["integer", "null"], "minimum": -bound, "maximum": bound - 1}
        case Atom("float" | "double"):
            return {"type": ["number", "string", "null"], "format": "number"}
        case Atom("binary"):
            return {"type": ["string", "null"], "contentEncoding": "base64"}
        case Atom(name):
            return {"type": ["string", "null"], **({"format": _FORMATS[name]} if name in _FORMATS else {})}
        case Decimal(_, scale):
            return {"type": ["string", "null"], "format": "number" if scale else "integer"}
        case Array(element):
            return {"type": ["array", "null"], "items": column_schema(element)}
        case Struct(fields):
            inner = {name: column_schema(field) for name, field in fields}
            return {"type": ["object", "null"], "properties": inner, "required": list(inner)}


def row_schema(columns: Sequence[Column], key: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a collection's documents."""
    properties = {c.name: {**column_schema(parse(c.name, c.type)), TYPE: c.type} for c in columns}
    return {"type": "object", "properties": properties, "required": list(properties), KEY: list(key)}


def inference(schema: Mapping[str, Any]) -> Message:
    """Return what a specification says of a column's values.

    >>> list(inference(column_schema(Atom("double"))).types)
    ['null', 'number', 'string']
    """
    types = sorted(schema["type"])
    found = Inference(types=types, exists=Inference.Exists.Value("MUST"))
    if "string" in types:
        found.string.SetInParent()
        found.string.format = schema.get("format", "")
        found.string.content_encoding = schema.get("contentEncoding", "")
    if "minimum" in schema:
        found.numeric.has_minimum, found.numeric.minimum = True, schema["minimum"]
        found.numeric.has_maximum, found.numeric.maximum = True, schema["maximum"]
    return found


def document_inference() -> Message:
    """Return what a specification says of whole documents."""
    return Inference(types=["object"], exists=Inference.Exists.Value("MUST"))


def column_type(name: str, schema: Mapping[str, Any], inferred: Message) -> str | None:
    """Return the type of the column for a field; None for values of several types, which are kept as JSON text.

    Raises `DefinitionError` for a type of ours that is none.
    """
    declared = schema.get(TYPE)
    if isinstance(declared, str):
        parse(name, declared)
        return declared
    if declared is not None:
        raise DefinitionError(f"field {name!r}: its {TYPE} is no text")
    types = tuple(sorted({*inferred.types} - {"null"}))
    if types == ("string",) and inferred.string.content_encoding == "base64":
        return "binary"
    found = _SCALARS.get((types, inferred.string.format))
    return found or ("string" if types == ("string",) else None)
