"""Whether a value fits a schema: this decides which branch of ``anyOf``, ``oneOf`` and ``if`` annotates a location.

The keywords of JSON Schema 2020-12 that say something of one value are understood, and the older form of ``items``
with a list.  ``format`` says nothing, as in the standard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from strandline.materialize.reduce.annotations import types_of
from strandline.materialize.reduce.schemas import Part, References, fields, inside, listed, named, pattern
from strandline.materialize.reduce.values import Value, is_number, order


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
