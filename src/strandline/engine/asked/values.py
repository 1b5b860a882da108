"""Values that clients send, as literals of Spark's: of just the type that Arrow gives them, and never as text.

A value is made by Spark's own functions of numbers, texts and bytes, and folded to one literal of Catalyst's.  So a
NULL, an array and a struct keep their type as well, and a literal may stand wherever an expression may.

Trap: the times of Arrow are whole numbers of a unit.  They are taken as such, since a Python `datetime` has neither
their range nor their nanoseconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.arrow_types import DECIMAL_DIGITS_MAX, spark_type
from strandline.algebra.schema import quote
from strandline.engine.asked import catalyst
from strandline.errors import DefinitionError, InvalidUsage

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS: Final = 1_000
_NO_TIME: Final = "nullif(TIME '00:00:00.000000', TIME '00:00:00.000000')"
_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)


def literals(session: SparkSession, given: Sequence[pa.Scalar]) -> list[Any]:
    """Return Catalyst's literals of ``given``.

    Raises `InvalidUsage` for a value that Spark has none for; it is called by its number.
    """
    if not given:
        return []
    columns = []
    for number, value in enumerate(given, start=1):
        try:
            columns.append(_column(value))
        except (DefinitionError, ValueError, OverflowError, pa.ArrowException) as error:
            raise _refused(number, value, str(error)) from error
    try:
        return catalyst.folded(session, columns)
    except PySparkException as error:
        raise InvalidUsage(f"Spark takes the parameters for no values: {error.getMessage() or error}") from error


def fits_int(value: pa.Scalar) -> bool:
    """Tell whether it is a whole number of 64 bits in the range of INT."""
    return bool(kinds.is_int64(value.type) and value.is_valid and value.as_py() in _INT)


def type_of(kind: pa.DataType) -> str:
    """Return the type that Spark gives values of an Arrow type.

    >>> type_of(pa.map_(pa.string(), pa.timestamp("ns"))), type_of(pa.null()), type_of(pa.decimal128(5, -2))
    ('map<string,timestamp_ntz>', 'void', 'decimal(7,0)')

    Raises `DefinitionError` if it has none.
    """
    if kinds.is_null(kind):
        return "void"
    if kinds.is_dictionary(kind):
        return type_of(kind.value_type)
    if kinds.is_map(kind):
        return f"map<{type_of(kind.key_type)},{type_of(kind.item_type)}>"
    if _is_list(kind):
        return f"array<{type_of(kind.value_type)}>"
    if kinds.is_struct(kind):
        return f"struct<{','.join(f'{quote(field.name)}:{type_of(field.type)}' for field in kind)}>"
    if kinds.is_time(kind):
        return "time(6)"
    if kinds.is_duration(kind):
        return "interval day to second"
    if kinds.is_interval(kind):
        return "interval"
    if kinds.is_decimal(kind) and kind.scale < 0:
        return _decimal_type(kind.precision - kind.scale, 0)
    if kinds.is_decimal(kind):
        return _decimal_type(kind.precision, kind.scale)
    return spark_type("", kind)


def _decimal_type(precision: int, scale: int) -> str:
    if precision > DECIMAL_DIGITS_MAX:
        raise DefinitionError(f"a decimal of Spark's has {DECIMAL_DIGITS_MAX} digits at most, and this one {precision}")
    return f"decimal({precision},{scale})"


def _column(value: pa.Scalar) -> Column:
    """Return a value as an expression without columns."""
    kind = value.type
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        inner = value.value
        return F.lit(None).cast(type_of(getattr(kind, "storage_type", kind))) if inner is None else _column(inner)
    if kinds.is_time(kind):  # no cast: but for its literals, Spark's TIME is turned off
        return F.expr(f"TIME '{_time(_micros(value.value, kind.unit))}'" if value.is_valid else _NO_TIME)
    if not value.is_valid:
        return F.lit(None) if kinds.is_null(kind) else F.lit(None).cast(type_of(kind))
    if kinds.is_map(kind):
        pairs = [_column(each[name]) for each in value.values for name in each]
        return F.create_map(*pairs).cast(type_of(kind))
    if _is_list(kind):
        return F.array(*(_column(each) for each in value.values)).cast(type_of(kind))
    if kinds.is_struct(kind):
        fields = [_column(value[place]).alias(field.name) for place, field in enumerate(kind)]
        return F.struct(*fields).cast(type_of(kind))
    return _atom(value, kind).cast(type_of(kind))


def _atom(value: pa.Scalar, kind: pa.DataType) -> Column:
    if kinds.is_timestamp(kind):
        return _moment(value.value, kind)
    if kinds.is_date(kind):
        return F.date_from_unix_date(F.lit(value.cast(pa.date32()).value))
    if kinds.is_duration(kind):
        return F.lit(dt.timedelta(microseconds=_micros(value.value, kind.unit)))
    if kinds.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        seconds = Decimal(_micros(nanoseconds, "ns")).scaleb(-6)
        return F.make_interval(months=F.lit(months), days=F.lit(days), secs=F.lit(seconds).cast("decimal(18,6)"))
    if kinds.is_uint64(kind):
        return F.lit(Decimal(value.as_py()))
    if kinds.is_decimal(kind):
        return F.lit(value.as_py())
    if kinds.is_floating(kind):
        return F.lit(float(value.as_py()))
    return F.lit(value.as_py())


def _moment(count: int, kind: pa.DataType) -> Column:
    """Return a point in time, in microseconds; without a zone, it is one in UTC, as our sessions are."""
    moment = F.timestamp_micros(F.lit(_micros(count, kind.unit)))
    return moment if kind.tz is not None else moment.cast("timestamp_ntz")


def _micros(count: int, unit: str) -> int:
    if unit == "ns":
        whole, rest = divmod(count, _NANOSECONDS)
        if rest:
            raise ValueError("it has nanoseconds, and Spark has times of whole microseconds")
        return whole
    found: int = count * _MICROSECONDS[unit]
    if found not in _LONG:
        raise ValueError("it is beyond the times of Spark")
    return found


def _time(micros: int) -> str:
    """Return a time of day.

    >>> _time(3_723_000_004)
    '01:02:03.000004'
    """
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _is_list(kind: pa.DataType) -> bool:
    known = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(is_one(kind) for is_one in known)


def _refused(number: int, value: pa.Scalar, why: str) -> InvalidUsage:
    return InvalidUsage(f"parameter {number} is a value of Arrow's type {value.type}, which Spark has none for: {why}")
