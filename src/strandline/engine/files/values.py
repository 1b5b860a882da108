"""Python's values of records as values of column types: exact, or refused.

A value that its column cannot hold raises `Refused`, and is never rounded, cut or guessed.  Wider numbers hold
narrower ones; a decimal holds every number that has its digits; text holds text, the names of symbols and UUIDs.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, Final, TypeAlias

from strandline.algebra import types
from strandline.algebra.unavailable import LEFT_OPEN, Sent, sent

Converted: TypeAlias = Callable[[Any], Any]
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DECIMAL_DIGITS_MAX: Final = 80
_EXACT: Final = Context(prec=_DECIMAL_DIGITS_MAX, traps=[Inexact, InvalidOperation])
_VALUE_CHARS_MAX: Final = 100
_ENTRY_FIELDS: Final = 2
_DOUBLE_DIGITS: Final = 1 << 53
_FLOAT_DIGITS: Final = 1 << 24


class Refused(Exception):
    """A value that its column cannot hold; the text says why."""


def converter(kind: types.Type) -> Converted:
    """Return the function that gives a value as one of this type, or raises `ValueError`.

    >>> converter(types.Atom("tinyint"))(127), converter(types.Decimal(4, 2))(Decimal("1.5"))
    (127, Decimal('1.50'))
    >>> converter(types.Atom("tinyint"))(128)
    Traceback (most recent call last):
        ...
    ValueError
    """
    match kind:
        case types.Decimal(precision, scale):
            return partial(_decimal, precision, scale)
        case types.Array(element):
            return partial(_array, converter(element), _entry(element))
        case types.Struct(fields):
            return partial(_struct, [(name, converter(field)) for name, field in fields])
        case types.Atom(name):
            return partial(_integer, _BITS[name]) if name in _BITS else _ATOMS[name]


def named(column: str, kind: types.Type, text: str) -> Converted:
    """Return `converter` for a column whose type's text is ``text``: it takes None, and raises `Refused`."""
    convert = converter(kind)

    def converted(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, ArithmeticError) as error:
            shown = str(value)[:_VALUE_CHARS_MAX]
            raise Refused(f"column `{column}`: '{shown}' is not a valid {text}") from error

    return converted


def sent_of(row: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], list[str] | None]:
    """Return a row of a change with NULL for each placeholder in the columns ``names``, and the names of those, if any.

    Raises `Refused` if a value may be a placeholder.
    """
    unsent = []
    for name in names:
        match sent(row.get(name)):
            case Sent.NO:
                unsent.append(name)
            case Sent.UNKNOWN:
                raise Refused(f"column `{name}`: {LEFT_OPEN}")
            case Sent.YES:
                pass
    return {**row, **dict.fromkeys(unsent)}, unsent or None


def _integer(bits: int, value: Any) -> int:
    if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError
    return value


def _double(value: Any) -> float:
    if type(value) is int and abs(value) <= _DOUBLE_DIGITS:
        return float(value)
    if type(value) is not float:
        raise ValueError
    return value


def _float(value: Any) -> float:
    if type(value) is int and abs(value) <= _FLOAT_DIGITS:
        return float(value)
    if type(value) is not float:
        raise ValueError
    if math.isfinite(value) and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise ValueError
    return value


def _decimal(precision: int, scale: int, value: Any) -> Decimal:
    if type(value) is not int and not isinstance(value, Decimal):
        raise ValueError
    if not Decimal(value).is_finite():
        raise ValueError
    found = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if len(found.as_tuple().digits) > precision:
        raise ValueError
    return found


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, uuid.UUID | dt.time):
        return str(value)
    raise ValueError


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError


def _date(value: Any) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    raise ValueError


def _timestamp(value: Any) -> dt.datetime:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value
    raise ValueError


def _timestamp_ntz(value: Any) -> dt.datetime:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value
    raise ValueError


_ATOMS: Final[dict[str, Converted]] = {
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


def _array(convert: Converted, entry: tuple[str, str] | None, value: Any) -> list[Any]:
    if entry is not None and isinstance(value, dict):  # a map is an array of its entries
        value = [{entry[0]: name, entry[1]: each} for name, each in sorted(value.items())]
    if not isinstance(value, list | tuple):
        raise ValueError  # noqa: TRY004 - the caller's reason for all that does not fit
    return [None if each is None else convert(each) for each in value]


def _entry(element: types.Type) -> tuple[str, str] | None:
    """Return the names of the fields of a map's entries, if such an array can hold a map."""
    match element:
        case types.Struct(fields) if len(fields) == _ENTRY_FIELDS:
            return fields[0][0], fields[1][0]
    return None


def _struct(fields: list[tuple[str, Converted]], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - see above
    return {name: None if value.get(name) is None else convert(value[name]) for name, convert in fields}
