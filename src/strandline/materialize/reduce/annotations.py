"""Annotations: the keyword ``reduce`` of a JSON Schema, and which of a schema's branches annotate a location.

    "reduce": {"strategy": "merge", "key": ["/id"], "associative": true, "delete": false}

Every fault is a `DefinitionError` that names its place in the schema as a JSON pointer.

Which branch of ``anyOf``, ``oneOf`` and ``if`` annotates a location depends on whether the value fits the branch.  This
check understands the keywords of JSON Schema 2020-12 that apply to one value, and the older form of ``items`` with a
list.  ``format`` is ignored, as in the standard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from strandline.errors import DefinitionError
from strandline.materialize.reduce.schemas import (
    Key,
    Part,
    References,
    Value,
    fields,
    inside,
    is_number,
    listed,
    named,
    order,
    parse_pointer,
    pattern,
    pointer,
    shown,
)


class Strategy(StrEnum):
    """How the value on the right is combined with the one on the left; `docs/reductions.md` shows each."""

    APPEND = "append"
    FIRST = "firstWriteWins"
    LAST = "lastWriteWins"
    MAXIMIZE = "maximize"
    MERGE = "merge"
    MINIMIZE = "minimize"
    SCHEMA = "jsonSchemaMerge"
    SET = "set"
    SUM = "sum"


TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""The types of JSON Schema."""

_DEMANDED: Final[Mapping[Strategy, frozenset[str]]] = {
    Strategy.APPEND: frozenset({"array"}),
    Strategy.MERGE: frozenset({"array", "object"}),
    Strategy.SCHEMA: frozenset({"object"}),
    Strategy.SET: frozenset({"object"}),
    Strategy.SUM: frozenset({"integer", "number", "object"}),
}
"""The types that a strategy is for, if not for all."""
_WITH_PARTS: Final = frozenset({"array", "object"})

KEYED: Final = frozenset({Strategy.MAXIMIZE, Strategy.MERGE, Strategy.MINIMIZE, Strategy.SET})
DELETING: Final = frozenset({Strategy.LAST, Strategy.MERGE})
DESCENDS: Final = frozenset({Strategy.MAXIMIZE, Strategy.MERGE, Strategy.MINIMIZE, Strategy.SET})
"""The strategies that reduce parts of a value by the annotations of these parts."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One ``reduce``; ``place`` is where the schema has it, empty if it is the default."""

    strategy: Strategy
    key: Key = ()
    associative: bool = True
    delete: bool = False
    place: str = field(default="", compare=False)


DEFAULT: Final = Annotation(Strategy.LAST)


def annotation(raw: Any, place: str) -> Annotation:
    """Return the annotation ``raw``, which the schema has at ``place``.

    >>> annotation({"strategy": "merge", "key": ["/id"]}, "/reduce").key
    (('id',),)

    Raises:
        DefinitionError: it is not one.
    """
    if not isinstance(raw, Mapping):
        raise DefinitionError(f"{place}: an annotation is an object with a `strategy`, not {shown(raw)}")
    unknown = sorted(raw.keys() - {"strategy", "key", "associative", "delete"})
    if unknown:
        raise DefinitionError(f"{place}/{unknown[0]}: unknown; known are strategy, key, associative, delete")
    strategy = _strategy(raw.get("strategy"), place)
    for name in ("associative", "delete"):
        if not isinstance(raw.get(name, False), bool):
            raise DefinitionError(f"{place}/{name}: must be true or false, not {shown(raw[name])}")
    if raw.get("delete", False) and strategy not in DELETING:
        raise DefinitionError(f"{place}/delete: {strategy} does not delete; lastWriteWins and merge do")
    key = _key(raw["key"], f"{place}/key", strategy) if "key" in raw else ()
    if strategy is Strategy.SET and not key:
        key = ((),)
    return Annotation(strategy, key, raw.get("associative", True), raw.get("delete", False), place)


def _strategy(raw: object, place: str) -> Strategy:
    try:
        return Strategy(str(raw))
    except ValueError as error:
        known = ", ".join(Strategy)
        raise DefinitionError(f"{place}/strategy: {shown(raw)} is not a strategy; known are {known}") from error


def _key(raw: object, place: str, strategy: Strategy) -> Key:
    if strategy not in KEYED:
        raise DefinitionError(f"{place}: {strategy} takes no key; {', '.join(sorted(KEYED))} do")
    if not isinstance(raw, list) or not raw:
        raise DefinitionError(f"{place}: must be a list of one or more JSON pointers, not {shown(raw)}")
    steps = []
    for index, text in enumerate(raw):
        parsed = parse_pointer(text) if isinstance(text, str) else None
        if parsed is None:
            raise DefinitionError(f'{place}/{index}: {shown(text)} is not a JSON pointer: write "" or "/name"')
        steps.append(parsed)
    return tuple(steps)


def types_of(schema: Mapping[str, Any], place: str) -> frozenset[str]:
    """Return the types that ``schema`` itself allows: those of its ``type``, or all.  A number may be an integer.

    Raises:
        DefinitionError: a type is unknown.
    """
    raw = schema.get("type", sorted(TYPES))
    named = [raw] if isinstance(raw, str) else raw
    if not isinstance(named, list) or not all(isinstance(each, str) and each in TYPES for each in named):
        raise DefinitionError(
            f"{place}/type: {shown(raw)} is not a type or a list of types ({', '.join(sorted(TYPES))})"
        )
    return frozenset(named) | ({"integer"} if "number" in named else frozenset())


def demands(found: Annotation) -> frozenset[str]:
    """Return the types that a strategy is for.  With a key, values are compared by their parts."""
    if found.strategy in {Strategy.MAXIMIZE, Strategy.MINIMIZE} and found.key:
        return _WITH_PARTS
    return _DEMANDED.get(found.strategy, TYPES)


def check_types(found: Annotation, types: frozenset[str]) -> None:
    """Require that a location that allows ``types`` fits the strategy.

    Raises:
        DefinitionError: it allows another type too.
    """
    demanded = demands(found)
    others = sorted(types - demanded) if types != TYPES else []
    if others:
        raise DefinitionError(
            f"{found.place}: {found.strategy} is for {' or '.join(sorted(demanded))}, and {others[0]} is allowed here"
        )


def irreducible(
    found: Annotation, steps: Sequence[str | int], held: Value, value: Value, why: object
) -> DefinitionError:
    """Return the error for two values at ``steps`` of documents that the annotation there cannot combine."""
    source = f" (by {found.place})" if found.place else ""
    where = pointer(steps) or "the root"
    return DefinitionError(
        f"at {where}, {found.strategy}{source} cannot combine {shown(held)} with {shown(value)}: {why}"
    )


def valid(part: Part, value: Value, references: References) -> bool:
    """Tell whether ``value`` fits the schema ``part``.

    >>> root = {"properties": {"op": {"const": "d"}}, "required": ["op"]}
    >>> [valid(Part("", root), each, References(root)) for each in ({"op": "d"}, {"op": "u"}, {})]
    [True, False, False]
    """
    if isinstance(part.schema, bool):
        return part.schema
    target = references.target(part)
    return (
        (target is None or valid(target, value, references))
        and _scalar(part, value)
        and _sized(part, value)
        and _branches(part, value, references)
        and (not isinstance(value, Mapping) or _object(part, value, references))
        and (not isinstance(value, list) or _array(part, value, references))
    )


def is_type(value: Value, name: str) -> bool:
    """Tell whether ``value`` is of a type of JSON Schema; bytes, dates and times count as strings."""
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return is_number(value)
        case "integer":
            return is_number(value) and math.isfinite(value) and value == int(value)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
    return value is not None and not isinstance(value, bool | list | Mapping) and not is_number(value)


def _scalar(part: Part, value: Value) -> bool:
    found = fields(part)
    if "type" in found and not any(is_type(value, name) for name in sorted(types_of(found, part.place))):
        return False
    if "const" in found and order(found["const"]) != order(value):
        return False
    if "enum" in found and order(value) not in [order(each) for each in found["enum"]]:
        return False
    if isinstance(value, str) and "pattern" in found:
        return pattern(found["pattern"], f"{part.place}/pattern").search(value) is not None
    return not is_number(value) or _bounded(found, value)


def _bounded(found: Mapping[str, Any], value: Decimal | float) -> bool:
    if value != value:  # noqa: PLR0124 - NaN is within no bounds
        return not found.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    return (
        ("minimum" not in found or value >= found["minimum"])
        and ("maximum" not in found or value <= found["maximum"])
        and ("exclusiveMinimum" not in found or value > found["exclusiveMinimum"])
        and ("exclusiveMaximum" not in found or value < found["exclusiveMaximum"])
        and ("multipleOf" not in found or _divides(found["multipleOf"], value))
    )


def _divides(step: Decimal | float, value: Decimal | float) -> bool:
    return math.isfinite(value) and Fraction(str(value)) % Fraction(str(step)) == 0


def _sized(part: Part, value: Value) -> bool:
    found = fields(part)
    kinds = (("Length", str), ("Items", list), ("Properties", Mapping))
    return all(
        found.get(f"min{name}", 0) <= len(value) <= found.get(f"max{name}", len(value))
        for name, kind in kinds
        if isinstance(value, kind)
    )


def _branches(part: Part, value: Value, references: References) -> bool:
    found = fields(part)
    if not all(valid(each, value, references) for each in listed(part, "allOf")):
        return False
    if "anyOf" in found and not any(valid(each, value, references) for each in listed(part, "anyOf")):
        return False
    if "oneOf" in found and sum(valid(each, value, references) for each in listed(part, "oneOf")) != 1:
        return False
    if "not" in found and valid(inside(part, "not"), value, references):
        return False
    branch = taken(part, value, references)
    return branch is None or valid(branch, value, references)


def taken(part: Part, value: Value, references: References) -> Part | None:
    """Return the branch of ``if`` that ``value`` takes; None if there is none."""
    if "if" not in fields(part):
        return None
    keyword = "then" if valid(inside(part, "if"), value, references) else "else"
    return inside(part, keyword) if keyword in fields(part) else None


def _object(part: Part, value: Mapping[str, Value], references: References) -> bool:
    found = fields(part)
    if any(name not in value for name in found.get("required", ())):
        return False
    for name, others in found.get("dependentRequired", {}).items():
        if name in value and any(other not in value for other in others):
            return False
    if "propertyNames" in found and not all(valid(inside(part, "propertyNames"), each, references) for each in value):
        return False
    return all(valid(each, value[name], references) for name in value for each in property_parts(part, name))


def property_parts(part: Part, name: str) -> list[Part]:
    """Return what ``part`` itself says of the property ``name``."""
    found = [inside(part, "properties", name)] if name in named(part, "properties") else []
    found += (
        inside(part, "patternProperties", text)
        for text in named(part, "patternProperties")
        if pattern(text, part.place).search(name)
    )
    if not found and "additionalProperties" in fields(part):
        found.append(inside(part, "additionalProperties"))
    return found


def _array(part: Part, value: list[Value], references: References) -> bool:
    found = fields(part)
    if not all(valid(each, item, references) for i, item in enumerate(value) for each in item_parts(part, i)):
        return False
    if found.get("uniqueItems") and len({order(item) for item in value}) < len(value):
        return False
    if "contains" not in found:
        return True
    many = sum(valid(inside(part, "contains"), item, references) for item in value)
    return bool(found.get("minContains", 1) <= many <= found.get("maxContains", many))


def item_parts(part: Part, index: int) -> list[Part]:
    """Return what ``part`` itself says of the item at ``index``."""
    found = fields(part)
    listing = "items" if isinstance(found.get("items"), list) else "prefixItems"
    rest = "additionalItems" if listing == "items" else "items"
    first = list(listed(part, listing))
    if index < len(first):
        return [first[index]]
    return [inside(part, rest)] if rest in found else []
