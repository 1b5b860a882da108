"""The union of two inferred JSON Schemas, for ``jsonSchemaMerge``.

A value that fits either schema fits the union.  The union is the least such schema that the keywords of `_LIMITS`,
types, properties, items and ``enum`` can say; it depends neither on order nor on grouping.  A keyword that is unknown
here is kept only if both sides have it with the same value, and a title or the like too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from strandline.errors import DefinitionError
from strandline.materialize.reduce.annotations import TYPES, types_of
from strandline.materialize.reduce.conditions import is_type
from strandline.materialize.reduce.values import NotReducibleError, order, shown

Shape = dict[str, Any]
"""A schema in normal form: `_TYPES` has its types, and other keywords limit values of these types only."""

_TYPES: Final = "types"
_STRING: Final = frozenset({"string"})
_NUMBER: Final = frozenset({"integer", "number"})
_ARRAY: Final = frozenset({"array"})
_OBJECT: Final = frozenset({"object"})
_LIMITS: Final[Mapping[str, tuple[frozenset[str], Callable[[Any, Any], Any] | None]]] = {
    "minLength": (_STRING, min),
    "maxLength": (_STRING, max),
    "format": (_STRING, None),
    "pattern": (_STRING, None),
    "minimum": (_NUMBER, min),
    "maximum": (_NUMBER, max),
    "exclusiveMinimum": (_NUMBER, min),
    "exclusiveMaximum": (_NUMBER, max),
    "multipleOf": (_NUMBER, None),
    "minItems": (_ARRAY, min),
    "maxItems": (_ARRAY, max),
    "uniqueItems": (_ARRAY, None),
    "minProperties": (_OBJECT, min),
    "maxProperties": (_OBJECT, max),
}
"""Keyword → the types that it limits, and how two limits are joined; None: it is kept if both are equal."""
_SAID: Final = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "title"})
"""Keywords that limit nothing."""
_NO_VALUE: Final[Shape] = {_TYPES: frozenset()}
_OWN: Final = frozenset({"type", "enum", "const", "items", "properties", "required", "additionalProperties"})


def union(left: object, right: object) -> dict[str, Any]:
    """Return the schema of all values that fit ``left`` or ``right``.

    >>> union({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 8, "format": "date"})
    {'type': 'string', 'maxLength': 8}
    >>> union({"type": "string", "maxLength": 5}, {"type": "integer"})
    {'type': ['integer', 'string'], 'maxLength': 5}

    Raises:
        NotReducibleError: a side is no schema, or refers to another one.
    """
    for side in (left, right):
        if not isinstance(side, Mapping):
            raise NotReducibleError(f"{shown(side)} is not the object of a JSON Schema")
    joined = _render(_join(shape(left), shape(right)))
    return joined if isinstance(joined, dict) else {"not": {}}


def shape(schema: object) -> Shape:
    """Return the normal form of ``schema``.  Raises `NotReducibleError` if it is no schema, or has a reference."""
    if isinstance(schema, bool):
        return {_TYPES: TYPES if schema else frozenset()}
    if not isinstance(schema, Mapping):
        raise NotReducibleError(f"{shown(schema)} is not a JSON Schema")
    if "not" in schema and schema["not"] in ({}, True):
        return _NO_VALUE
    if schema.keys() & {"$ref", "$dynamicRef", "$recursiveRef"}:
        raise NotReducibleError("an inferred schema has no references: write what it refers to in its place")
    try:
        types = types_of(schema, "")
    except DefinitionError as error:
        raise NotReducibleError(str(error)) from error
    found: Shape = {}
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is not None:
        fitting = [each for each in _list(listed, "enum") if any(is_type(each, name) for name in sorted(types))]
        types = frozenset(name for name in types if any(is_type(each, name) for each in fitting))
        found["enum"] = _sorted(fitting)
    found[_TYPES] = types
    found.update({name: schema[name] for name, (limited, _) in _LIMITS.items() if name in schema and types & limited})
    if schema.get("uniqueItems") is False:
        found.pop("uniqueItems", None)
    others = {name: each for name, each in schema.items() if name not in _OWN and name not in _LIMITS}
    found["said"] = {name: each for name, each in others.items() if name in _SAID}
    found["others"] = {name: each for name, each in others.items() if name not in _SAID}
    for name, kind in (("items", "array"), ("additionalProperties", "object")):
        if kind in types and (part := _limiting(shape(schema.get(name, True)))) is not None:
            found[name] = part
    if "object" in types:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise NotReducibleError(f"`properties` is {shown(properties)}, not an object")
        found["properties"] = _known({name: _limiting(shape(each)) for name, each in properties.items()}, found)
        found["required"] = frozenset(_list(schema.get("required", []), "required"))
    return found


def _limiting(found: Shape) -> Shape | None:
    """Return a shape that says something; None, in the place of one that every value fits and that says nothing."""
    limits = found.keys() & {*_LIMITS, "enum", "items", "additionalProperties"}
    says = any(found.get(name) for name in ("said", "others", "properties", "required"))
    return found if limits or says or found[_TYPES] != TYPES else None


def _known(properties: dict[str, Shape | None], of: Shape) -> dict[str, Shape | None]:
    """Return the properties that say something: any value is allowed for the others if no name is refused."""
    return {name: part for name, part in properties.items() if part is not None or "additionalProperties" in of}


def _list(raw: Any, keyword: str) -> list[Any]:
    if not isinstance(raw, list):
        raise NotReducibleError(f"`{keyword}` is {shown(raw)}, not a list")
    return raw


def _sorted(values: list[Any]) -> list[Any]:
    return [values[at] for at in _first_of_each([order(each) for each in values])]


def _first_of_each(orders: list[Any]) -> list[int]:
    places = sorted(range(len(orders)), key=lambda at: orders[at])
    return [
        at
        for before, at in zip([None, *places], places, strict=False)
        if before is None or orders[before] != orders[at]
    ]


def _join(left: Shape, right: Shape) -> Shape:
    if not left[_TYPES] or not right[_TYPES]:  # no value fits one side
        return left if left[_TYPES] else right
    joined: Shape = {_TYPES: left[_TYPES] | right[_TYPES]}
    if "enum" in left and "enum" in right:
        joined["enum"] = _sorted(left["enum"] + right["enum"])
    for name, (limited, join) in _LIMITS.items():
        sides = [side[name] for side in (left, right) if name in side]
        if len(sides) < sum(1 for side in (left, right) if side[_TYPES] & limited):
            continue  # one side allows such values without the limit
        if len(sides) == 1 or (sides and sides[0] == sides[1]):
            joined[name] = sides[0]
        elif sides and join is not None:
            joined[name] = join(*sides)
    said = left.get("said", {}), right.get("said", {})
    joined["said"] = {name: each for name, each in said[0].items() if name in said[1] and said[1][name] == each}
    others = left.get("others", {})
    joined["others"] = others if others == right.get("others", {}) else {}
    for name, kind in (("items", "array"), ("additionalProperties", "object")):
        parts = [side.get(name) for side in (left, right) if kind in side[_TYPES]]
        part = _join_any(*parts) if parts else None
        if part is not None:
            joined[name] = part
    objects = [side for side in (left, right) if "object" in side[_TYPES]]
    if len(objects) == 1:
        joined.update({name: objects[0][name] for name in ("properties", "required") if name in objects[0]})
    elif objects:
        joined["required"] = left.get("required", frozenset()) & right.get("required", frozenset())
        joined["properties"] = _known(_properties(left, right), joined)
    return joined


def _join_any(left: Shape | None, right: Shape | None = _NO_VALUE) -> Shape | None:
    """Return the union of two shapes, of which None is that of every value."""
    return None if left is None or right is None else _limiting(_join(left, right))


def _properties(left: Shape, right: Shape) -> dict[str, Shape | None]:
    first, second = left.get("properties", {}), right.get("properties", {})
    rest, other_rest = left.get("additionalProperties"), right.get("additionalProperties")
    return {
        name: _join_any(first.get(name, rest), second.get(name, other_rest))
        for name in sorted(first.keys() | second.keys())
    }


def _render(found: Shape) -> dict[str, Any] | bool:
    """Return a shape as a schema: an object, or false if no value fits."""
    types = found[_TYPES]
    if not types:
        return False
    names = sorted(types - ({"integer"} if "number" in types else set()))
    schema: dict[str, Any] = {**found.get("said", {}), **found.get("others", {})}
    if types != TYPES:
        schema["type"] = names[0] if len(names) == 1 else names
    schema.update({name: found[name] for name in ("enum", *_LIMITS) if name in found})
    schema.update({name: _render(found[name]) for name in ("items", "additionalProperties") if name in found})
    if found.get("properties"):
        schema["properties"] = {
            name: {} if part is None else _render(part) for name, part in found["properties"].items()
        }
    if found.get("required"):
        schema["required"] = sorted(found["required"])
    return schema
