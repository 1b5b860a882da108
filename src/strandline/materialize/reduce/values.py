"""Values of documents: one order over all of them, exact sums, and pointers into them.

A value is None, a bool, an int, a Decimal, a float, a str, a list or a dict, and, if it comes from a column, also
bytes, a date or a time.  `MISSING` is no value: a property that is not there differs from one that is null.

Order, least first: missing, null, false, true, numbers, texts, bytes, dates, times, arrays, objects.  Numbers are
compared by their exact value, whatever their types.  -0.0 equals 0.0; NaN equals NaN and is greater than every number.
Arrays are compared item by item; objects are compared as the list of their properties, sorted by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, Overflow
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

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
