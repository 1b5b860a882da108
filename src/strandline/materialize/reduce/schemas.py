"""JSON Schemas and document values as data: nested schemas, references, an order of values, exact sums, pointers.

A schema applies to one location of a document.  The schemas under `IN_PLACE` and ``$ref`` apply to the same location,
those under ``properties``, ``items`` and the like to the locations below.  References lead to places of the same
schema: ``#``, ``#/…`` or ``#anchor``.

A value is None, a bool, an int, a Decimal, a float, a str, a list or a dict, and, if it comes from a column, also
bytes, a date or a time.  `MISSING` is no value: a missing property differs from one that is null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, Overflow
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from strandline.errors import DefinitionError

Value: TypeAlias = Any
Document: TypeAlias = Mapping[str, Any]
Number: TypeAlias = int | Decimal | float
Order: TypeAlias = tuple[Any, ...]
Key: TypeAlias = tuple[tuple[str, ...], ...]
"""Pointers whose values, one after the other, order the values that they point into."""


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "nothing"


MISSING: Final = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a full reduction that removes the document (or, inside of one, a location)."""


DELETED: Final = Deleted()


class NotAssociativeError(Exception):
    """Two values cannot be combined before what is on their left is known; both documents are kept, in order."""


class NotReducibleError(Exception):
    """A strategy met values that it is not for; the caller knows where, and raises a `DefinitionError`."""


DIGITS_MAX: Final = 10_000
"""How many digits the sum of decimals may have: `1E+999999999` is short to write and long to keep."""
SHOWN_CHARS_MAX: Final = 60
EXACT: Final = Context(prec=DIGITS_MAX, traps=[Inexact, Overflow])
"""Decimal arithmetic that never rounds."""
_POINTER: Final = re.compile(r"(/([^~/]|~[01])*)*")
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")


def parse_pointer(text: str) -> tuple[str, ...] | None:
    """Return the steps of a JSON pointer (RFC 6901); None if ``text`` is none.

    >>> parse_pointer(""), parse_pointer("/a~1b/0"), parse_pointer("a"), parse_pointer("/~2")
    ((), ('a/b', '0'), None, None)
    """
    if not _POINTER.fullmatch(text):
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def pointer(steps: Sequence[str | int]) -> str:
    """Return the JSON pointer of ``steps``.

    >>> pointer(("a/b", 0)), pointer(())
    ('/a~1b/0', '')
    """
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def at(value: Value, steps: Sequence[str]) -> Value | Literal[Missing.MISSING]:
    """Return what is at ``steps`` in ``value``; `MISSING` if nothing is."""
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


def order(value: Value) -> Order:
    """Return what compares as ``value`` does in the order of this module, and is equal for equal values.

    >>> order(MISSING) < order(None) < order(True) < order(-1) < order(Decimal("0.5")) < order(float("nan")) < order("")
    True
    >>> order(1) == order(1.0) == order(Decimal("1.00")) != order(True)
    True

    The order, least first: missing, null, false, true, numbers, texts, bytes, dates, times, arrays, objects.  Numbers
    are compared by their exact value, whatever their types.  -0.0 equals 0.0; NaN equals NaN and is greater than every
    number.  Arrays are compared item by item; objects are compared as the list of their properties, sorted by name.
    """
    kinds: Order
    match value:
        case Missing():
            kinds = (0,)
        case None:
            kinds = (1,)
        case bool():
            kinds = (2, value)
        case int() | float() | Decimal():
            kinds = (3, 1, 0) if value != value else (3, 0, value)  # noqa: PLR0124 - only NaN differs from itself
        case str():
            kinds = (4, value)
        case bytes():
            kinds = (5, value)
        case datetime():
            kinds = (8 if value.tzinfo else 7, value)
        case date():
            kinds = (6, value)
        case time():
            kinds = (9, value)
        case timedelta():
            kinds = (10, value)
        case list():
            kinds = (11, tuple(order(item) for item in value))
        case Mapping():
            kinds = (12, tuple((name, order(value[name])) for name in sorted(value)))
        case _:
            raise NotReducibleError(f"a {type(value).__name__} is no value of a document")
    return kinds


def keys_of(value: Value, key: Key) -> Order:
    """Return the order of ``value`` by the values at the pointers ``key``."""
    return tuple(order(at(value, steps)) for steps in key)


def is_number(value: Value) -> bool:
    """Tell whether ``value`` can be summed: a bool is no number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def add(left: Number, right: Number) -> Number:
    """Return the sum.  Integers and decimals are exact; with a float on either side, both are rounded to floats first.

    NaN and infinities follow IEEE 754.

    Raises:
        NotReducibleError: the sum of two finite floats is too large for a float, an operand is too large to be made
            one, or the sum of decimals has more than `DIGITS_MAX` digits.

    >>> add(2**70, 1) == 2**70 + 1, add(Decimal("0.1"), Decimal("0.2")), add(1, Decimal("0.50")), add(1, 0.5)
    (True, Decimal('0.3'), Decimal('1.50'), 1.5)
    """
    if isinstance(left, float) or isinstance(right, float):
        try:
            first, second = float(left), float(right)
        except OverflowError as error:
            raise NotReducibleError("the number is too large to be added to a float") from error
        if _too_large(left, first) or _too_large(right, second):
            raise NotReducibleError("the number is too large to be added to a float")
        total = first + second
        if math.isinf(total) and math.isfinite(first) and math.isfinite(second):
            raise NotReducibleError("the sum is too large for a float")
        return total
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if not (Decimal(left).is_finite() and Decimal(right).is_finite()):
        raise NotReducibleError("a decimal that is NaN or infinite cannot be summed")
    try:
        return EXACT.add(Decimal(left), Decimal(right))
    except (Inexact, Overflow) as error:
        raise NotReducibleError(f"the sum has more than {DIGITS_MAX} digits") from error


def _too_large(exact: Number, rounded: float) -> bool:
    return math.isinf(rounded) and not isinstance(exact, float)


def fresh(value: Value) -> Value:
    """Return a copy whose lists and dicts may be changed."""
    if isinstance(value, Mapping):
        return {name: fresh(part) for name, part in value.items()}
    return [fresh(item) for item in value] if isinstance(value, list) else value


def shown(value: Value) -> str:
    """Return a short text for a message.

    >>> shown(MISSING), shown({"a": None}), len(shown("x" * 1000))
    ('nothing', "{'a': None}", 60)
    """
    text = value.value if isinstance(value, Missing) else repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


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
