"""Casts of Python values as Spark casts its own, in ANSI mode."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from strandline.algebra.types import decimal_digits
from strandline.errors import EvaluationError, InvalidUsage

Value: TypeAlias = Any

BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}
WIDE: Final = Context(prec=60)


def failed(condition: str, detail: str) -> EvaluationError:
    """Return the error of a row on which an expression fails, with Spark's name of the condition."""
    return EvaluationError(f"a row cannot be evaluated: {condition}: {detail}")


def cast(value: Value, type_: str) -> Value:
    """Return ``value`` cast to ``type_`` as Spark's CAST does.

    >>> cast("7", "int"), cast(Decimal("2.5"), "decimal(3,0)"), cast(True, "bigint"), cast(None, "int")
    (7, Decimal('3'), 1, None)
    """
    if value is None:
        return None
    type_ = type_.lower()
    if type_ in BITS:
        return _whole(value, BITS[type_])
    if digits := decimal_digits(type_):
        return _decimal(value, *digits)
    match type_:
        case "double" | "float":
            return float(value)
        case "string":
            return str(value).lower() if isinstance(value, bool) else str(value)
        case "boolean":
            return bool(value)
    raise InvalidUsage(f"list_expressions cannot CAST to {type_}")


def in_range(value: int, bits: int = 64) -> int:
    """Return ``value``, which must fit ``bits``."""
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    raise failed("ARITHMETIC_OVERFLOW", f"{value} does not fit {bits} bits")


def _whole(value: Value, bits: int) -> int:
    try:
        whole = int(value)
    except (ValueError, OverflowError) as error:
        raise failed("CAST_INVALID_INPUT", f"{value!r} is no whole number") from error
    return in_range(whole, bits)


def _decimal(value: Value, digits: int, scale: int) -> Decimal:
    try:
        exact = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
        rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, WIDE)
    except InvalidOperation as error:
        raise failed("CAST_INVALID_INPUT", f"{value!r} is no decimal({digits},{scale})") from error
    if abs(rounded) >= Decimal(10) ** (digits - scale):
        raise failed("NUMERIC_VALUE_OUT_OF_RANGE", f"{value} does not fit decimal({digits},{scale})")
    return rounded
