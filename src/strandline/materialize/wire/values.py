"""The values of columns as JSON says them, and back.

| column | JSON |
| --- | --- |
| boolean, integers | itself |
| float, double | a number; ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` are texts |
| decimal | a text of all its digits: a JSON number would be read as a double |
| string | itself |
| binary | a text in base64 |
| date, timestamp, timestamp_ntz | a text of RFC 3339, a timestamp in UTC with ``Z``, a timestamp_ntz without a zone |
| array, struct | an array, an object |

The way back is lenient, because an endpoint returns what it kept: a number or a text of it, any zone, fields that are
missing.  What it cannot read as the column's type is a `ProtocolViolation`.

Source: RFC 8259 (JSON), RFC 3339 (date-time).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.errors import ProtocolViolation

_FAR: Final = re.compile(r"(-\d{4,}|0000|\d{5,})-\d\d-\d\d([T ]\d\d:\d\d:\d\d(\.\d{1,6})?)?Z?")
"""A date or time in a year that Python does not have: before 1, or after 9999."""
SHOWN_MAX: Final = 80
"""How much of a value a message shows."""
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MICROSECONDS: Final = "%Y-%m-%dT%H:%M:%S"
"""Arrow's %S has as many digits as the type: six of a microsecond."""
_DAY: Final = 86_400_000_000
_WRITTEN_DAYS: Final = (-12_687_063, 11_248_373)
"""The years -32766 to 32766, whose dates Arrow writes."""
_YEAR: Final = re.compile(r"^-(\d+)")
_compact = msgspec.json.Encoder(order="deterministic")


def compact(value: Any) -> bytes:
    """Return the one JSON text of a value: no spaces, keys sorted.

    >>> compact({"b": [2], "a": 1})
    b'{"a":1,"b":[2]}'
    """
    return _compact.encode(value)


def plain(column: pa.ChunkedArray | pa.Array, number: Callable[[float], float | str] | None = None) -> pa.Array:
    """Return a column as an array of what JSON knows: booleans, int64, doubles, strings; nested ones as JSON in binary.

    ``number`` says what stands for a double inside of nested values, if not a number wherever JSON has one.

    >>> plain(pa.array([{"b": b"x", "a": [None, 1.5]}])).to_pylist()
    [b'{"a":[null,1.5],"b":"eA=="}']
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_nested(kind):
        dated = _dated(array)
        write = _writer(dated.type, _number if number is None else number)
        texts = (None if value is None else compact(write(value)) for value in dated.to_pylist())
        return pa.array(texts, pa.binary())
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return array.cast(pa.bool_())
    if pa.types.is_integer(kind):
        return array.cast(pa.int64())
    if pa.types.is_floating(kind):
        return array.cast(pa.float64())
    return _texts(array)


def _dated(array: pa.Array) -> pa.Array:
    """Return a nested array with texts for its dates and times, of which Python has not all."""
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _texts(array)
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [_dated(child) for child in array.flatten()]
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, names=names, mask=array.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array, array[:0]])  # without an offset, which no mask may have
        return pa.ListArray.from_arrays(whole.offsets, _dated(whole.values), mask=whole.is_null())
    return array


def _texts(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_date(kind):
        return array.cast(pa.string()) if _near(array.cast(pa.int32()), 1) else _far_texts(array.cast(pa.int32()), "D")
    if pa.types.is_timestamp(kind):
        numbers = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        if _near(numbers, _DAY):
            written = pc.strftime(numbers.cast(pa.timestamp("us")), _MICROSECONDS)
        else:
            written = _far_texts(numbers, "us")
        return written if kind.tz is None else pc.binary_join_element_wise(written, "Z", "")
    if pa.types.is_decimal(kind):
        written = array.cast(pa.string())
        scientific = pc.any(pc.match_substring(written, "E")).as_py()
        return pa.array(map(_digits, array.to_pylist()), pa.string()) if scientific else written
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(map(_base64, array.to_pylist()), pa.string())
    return array.cast(pa.string())


def _near(numbers: pa.Array, unit: int) -> bool:
    """Return whether all are in years that Arrow writes; of others it writes another year, or no date at all."""
    least, greatest = pc.min_max(numbers).values()
    return not least.is_valid or (
        least.as_py() >= _WRITTEN_DAYS[0] * unit and greatest.as_py() < _WRITTEN_DAYS[1] * unit
    )


def _far_texts(numbers: pa.Array, unit: Literal["D", "us"]) -> pa.Array:
    """Return dates or times of any year as texts, given days or microseconds since 1970.

    >>> _far_texts(pa.array([-719893, 2**31 - 1, None], pa.int32()), "D").to_pylist()
    ['-0001-01-01', '5881580-07-11', None]
    """
    moments = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64).astype(f"datetime64[{unit}]")
    texts = [_YEAR.sub(lambda found: f"-{found[1]:0>4}", text) for text in np.datetime_as_string(moments).tolist()]
    return pc.if_else(numbers.is_valid(), pa.array(texts, pa.string()), pa.scalar(None, pa.string()))


def _digits(value: decimal.Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _writer(kind: pa.DataType, number: Callable[[float], float | str]) -> Callable[[Any], Any]:
    """Return the function from Arrow's Python values of a type to those of JSON; it is given no None."""
    if pa.types.is_struct(kind):
        fields = [(kind.field(place).name, _writer(kind.field(place).type, number)) for place in range(kind.num_fields)]
        return lambda value: {name: None if value[name] is None else write(value[name]) for name, write in fields}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _writer(kind.value_type, number)
        return lambda value: [None if each is None else inner(each) for each in value]
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind):
        return lambda value: value
    if pa.types.is_floating(kind):
        return number
    return lambda value: _texts(pa.array([value], kind))[0].as_py()


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else not_finite(value)


def not_finite(value: float) -> str:
    """Return the text of a double that JSON has no number for.

    >>> not_finite(math.nan), not_finite(-math.inf)
    ('NaN', '-Infinity')
    """
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def listed(array: pa.Array) -> list[Any]:
    """Return a `plain` array as Python's values for a JSON encoder; nested ones are JSON already.

    >>> listed(plain(pa.array([1.5, None, math.inf])))
    [1.5, None, 'Infinity']
    """
    values: list[Any] = array.to_pylist()
    if pa.types.is_binary(array.type):
        return [None if value is None else msgspec.Raw(value) for value in values]
    if pa.types.is_floating(array.type) and pc.all(pc.is_finite(array)).as_py() not in {True, None}:
        return [None if value is None else _number(value) for value in values]
    return values


# --- and back ---------------------------------------------------------------------------------------------------------
def column(name: str, values: Iterable[Any], kind: Type) -> pa.Array:
    """Return JSON values as a column of a type.

    >>> column("t", ["2024-01-01T02:00:00+02:00", None], Atom("timestamp")).to_pylist()[0].isoformat()
    '2024-01-01T00:00:00+00:00'

    Raises:
        ProtocolViolation: one of them is no value of the type; the message names the column.
    """
    read = _reader(kind)
    found: list[Any] = []
    for value in values:
        try:
            found.append(read(value))
        except (ValueError, TypeError, AttributeError, ArithmeticError, binascii.Error) as error:
            raise _unfit(name, value, kind) from error
    try:
        return pa.array(found, arrow(kind))
    except (pa.ArrowException, OverflowError) as error:
        raise ProtocolViolation(f"column {name!r}: a value does not fit {_named(kind)}: {error}") from error


def _unfit(name: str, value: Any, kind: Type) -> ProtocolViolation:
    shown = repr(value)
    cut = f"{shown[:SHOWN_MAX]}…" if len(shown) > SHOWN_MAX else shown
    return ProtocolViolation(f"column {name!r}: {cut} is no {_named(kind)}")


def _named(kind: Type) -> str:
    match kind:
        case Atom(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array():
            return "array"
        case Struct():
            return "struct"


def _reader(kind: Type) -> Callable[[Any], Any]:
    """Return the function from JSON's values to what Arrow takes for a type."""
    match kind:
        case Atom(name):
            return _optional(_ATOMS[name])
        case Decimal(precision, scale):
            return _optional(lambda value: _decimal(value, precision, scale))
        case Array(element):
            inner = _reader(element)
            return _optional(lambda value: [inner(each) for each in _of(list, value)])
        case Struct(fields):
            readers = [(name, _reader(field)) for name, field in fields]
            return _optional(lambda value: {name: read(_of(dict, value).get(name)) for name, read in readers})


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _of(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it is a {type(value).__name__}")
    return value


def _boolean(value: Any) -> bool:
    return bool(_of(bool, value))


def _integer(value: Any) -> int:
    if isinstance(value, str):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("it is no integer")
    return value


def _double(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value] if value in _NOT_FINITE else float(value)
    if isinstance(value, bool):
        raise TypeError("it is no number")
    return float(value)


def _decimal(value: Any, precision: int, scale: int) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("it is no number")
    # A double is read as the digits that JSON shows.
    exact = decimal.Decimal(value if isinstance(value, str) else repr(value))
    return exact.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=precision))


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_of(str, value), validate=True)


def _far(value: str, unit: Literal["D", "us"]) -> int | None:
    """Return days or microseconds since 1970 for a year that Python does not have; None: it has the year.

    >>> _far("-0044-03-15", "D"), _far("12000-01-01T00:00:00.000001Z", "us"), _far("2024-01-01", "D")
    (-735525, 316516204800000001, None)
    """
    if not _FAR.fullmatch(value):
        return None
    return int(np.datetime64(value.removesuffix("Z"), unit).astype(np.int64))


def _date(value: Any) -> dt.date | int:
    far = _far(_of(str, value), "D")
    return dt.date.fromisoformat(value) if far is None else far


def _instant(value: Any) -> dt.datetime | int:
    far = _far(_of(str, value), "us")
    if far is not None:
        return far
    found = dt.datetime.fromisoformat(value)
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def _local(value: Any) -> dt.datetime | int:
    far = _far(_of(str, value), "us")
    return dt.datetime.fromisoformat(value).replace(tzinfo=None) if far is None else far


_ATOMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": _boolean,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), _double),
    "string": lambda value: _of(str, value),
    "binary": _bytes,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _local,
}


def rows_of(columns: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
    """Return the rows of columns of equal length.

    >>> list(rows_of([[1, 2], ["a", "b"]]))
    [(1, 'a'), (2, 'b')]
    """
    return zip(*columns, strict=True)
