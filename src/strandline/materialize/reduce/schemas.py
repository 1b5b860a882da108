"""JSON Schemas as data: where a schema holds other schemas, and what its references mean.

A schema speaks of one location of a document.  The schemas under `IN_PLACE` and ``$ref`` speak of the same location,
those under ``properties``, ``items`` and the like of the locations below.  References lead to places of the same
schema: ``#``, ``#/…`` or ``#anchor``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from strandline.errors import DefinitionError
from strandline.materialize.reduce.values import parse_pointer, pointer, shown

Schema: TypeAlias = Mapping[str, Any] | bool

IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
"""Keywords with a list of schemas of the same location."""
CONDITIONS: Final = ("if", "not")
"""Keywords with a schema that decides something, and annotates nothing."""
BRANCHES: Final = ("then", "else")
NAMED_BELOW: Final = ("properties", "patternProperties")
REFUSED: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "contentSchema",
    "dependencies",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords that could decide which annotation applies, and are not understood."""


class Part(NamedTuple):
    """A schema inside of a schema."""

    place: str
    schema: Schema


def fields(part: Part) -> Mapping[str, Any]:
    """Return the keywords of a schema; those of ``true`` and ``false`` are none."""
    return part.schema if isinstance(part.schema, Mapping) else {}


def inside(part: Part, *steps: str | int) -> Part:
    """Return the schema at ``steps`` of ``part``, which is there.

    Raises:
        DefinitionError: it is no schema.
    """
    schema: Any = part.schema
    for step in steps:
        schema = schema[step]
    place = part.place + pointer(steps)
    if not isinstance(schema, Mapping | bool):
        raise DefinitionError(f"{place}: a schema is an object, true or false, not {shown(schema)}")
    return Part(place, schema)


def in_place(part: Part) -> Iterator[Part]:
    """Yield the schemas of ``part`` that speak of its location, except the one that it refers to."""
    for keyword in IN_PLACE:
        yield from listed(part, keyword)
    for keyword in BRANCHES:
        if keyword in fields(part):
            yield inside(part, keyword)


def below(part: Part) -> Iterator[Part]:
    """Yield the schemas of ``part`` that speak of the locations below its own."""
    found = fields(part)
    for keyword in NAMED_BELOW:
        for name in named(part, keyword):
            yield inside(part, keyword, name)
    yield from listed(part, "prefixItems")
    if isinstance(found.get("items"), list):
        yield from listed(part, "items")
    elif "items" in found:
        yield inside(part, "items")
    for keyword in ("additionalProperties", "additionalItems"):
        if keyword in found:
            yield inside(part, keyword)


def conditions(part: Part) -> Iterator[Part]:
    """Yield the schemas of ``part`` that only decide."""
    for keyword in (*CONDITIONS, "contains", "propertyNames"):
        if keyword in fields(part):
            yield inside(part, keyword)


def listed(part: Part, keyword: str) -> Iterator[Part]:
    """Yield the schemas in the list under ``keyword``.  Raises `DefinitionError` if it is no list of schemas."""
    found = fields(part).get(keyword, [])
    if not isinstance(found, list):
        raise DefinitionError(f"{part.place}/{keyword}: must be a list of schemas, not {shown(found)}")
    for index in range(len(found)):
        yield inside(part, keyword, index)


def named(part: Part, keyword: str) -> list[str]:
    """Return the names under ``keyword``.

    Raises:
        DefinitionError: ``keyword`` holds no object, or a pattern that is none.
    """
    found = fields(part).get(keyword, {})
    if not isinstance(found, Mapping):
        raise DefinitionError(f"{part.place}/{keyword}: must be an object of schemas, not {shown(found)}")
    if keyword == "patternProperties":
        for name in found:
            pattern(name, part.place + pointer((keyword, name)))
    return list(found)


def pattern(text: str, place: str) -> re.Pattern[str]:
    """Return a regular expression of a schema.  Raises `DefinitionError` if it is none."""
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise DefinitionError(f"{place}: {shown(text)} is not a regular expression: {error}") from error


class References:
    """The schemas of one root that others may refer to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = Part("", root)
        self._anchors = {text: part for part in _every(self.root) if (text := fields(part).get("$anchor")) is not None}

    def target(self, part: Part) -> Part | None:
        """Return the schema that ``part`` refers to; None if it refers to none.

        Raises:
            DefinitionError: there is no such place, or it is in another document.
        """
        text = fields(part).get("$ref")
        if text is None:
            return None
        place = f"{part.place}/$ref"
        if not isinstance(text, str) or not text.startswith("#"):
            raise DefinitionError(
                f"{place}: {shown(text)} is outside of this schema: copy it into `$defs` and write #/$defs/…"
            )
        steps = parse_pointer(text[1:])
        if steps is None:
            if text[1:] in self._anchors:
                return self._anchors[text[1:]]
            raise DefinitionError(f"{place}: no schema has the anchor {shown(text)}")
        found: Any = self.root.schema
        for step in steps:
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            else:
                raise DefinitionError(f"{place}: there is nothing at {shown(text)}")
        if not isinstance(found, Mapping | bool):
            raise DefinitionError(f"{place}: {shown(text)} is no schema")
        return Part(text[1:], found)


def properties(root: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a document that its schema names, each with one place where it does.

    Raises `DefinitionError` if a part of the schema is no schema.

    >>> properties({"properties": {"a": {"properties": {"b": {}}}}, "if": {"properties": {"c": {}}}})
    {'a': '/properties/a', 'c': '/if/properties/c'}
    """
    references, found, seen = References(root), dict[str, str](), set[str]()
    parts = [references.root]
    while parts:
        part = parts.pop()
        if part.place in seen:
            continue
        seen.add(part.place)
        for name in named(part, "properties"):
            found.setdefault(name, part.place + pointer(("properties", name)))
        target = references.target(part)
        deciding = (inside(part, keyword) for keyword in CONDITIONS if keyword in fields(part))
        parts += [*in_place(part), *deciding, *([] if target is None else [target])]
    return found


def _every(part: Part) -> Iterator[Part]:
    yield part
    for keyword in ("$defs", "definitions"):
        for name in named(part, keyword):
            yield from _every(inside(part, keyword, name))
    for group in (in_place, below, conditions):
        for each in group(part):
            yield from _every(each)
