"""How values are written as text: which texts are values of a type, and which values Python sees as text.

A notation is the same in every format and on every path.  A text that does not match the notation of the type of its
column is a record that cannot be decoded.  It is never read as something near it: Spark alone takes ``68,83`` for
6883, ``1d`` for a number, ``2020-01-02Tx`` for a date, ``12:30`` for a moment of today.

Notations are regular expressions that Java and Python read alike.  Each is narrower than what Spark's ``CAST`` takes,
so Spark reads whatever matches.  A match may still be no value (``2023-02-30``, a number too large for its column):
then Spark, or `value` here, gives NULL, which is an error too.

Trap: if a format has its own pattern of dates or timestamps, that pattern replaces the notation.

`Excerpt` is a piece of a user's SQL that is passed to Spark verbatim, with the values of its question marks.
"""

from __future__ import annotations

import base64
import ctypes
import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from strandline.algebra import types
from strandline.errors import DefinitionError, Position

_WHOLE: Final = "[+-]?[0-9]++"
_DIGITS: Final = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)"
_DATE: Final = "(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_MINUTE: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SECOND: Final = r":[0-5][0-9](?:\.[0-9]{1,6}+0*+)?"
_OFFSET: Final = "[+-](?:(?:0[0-9]|1[0-7])(?::?[0-5][0-9])?|18(?::?00)?)"
_ZONE: Final = f"(?: ?(?:Z|UTC|{_OFFSET}))?"
_BASE64: Final = "[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}=="

_DECIMAL: Final = f"{_DIGITS}(?:[eE][+-]?[0-9]{{1,3}})?"
"""An exponent of more digits has no number that a column holds, and takes minutes to write out."""
_OF_ATOMS: Final[Mapping[str, str]] = {
    "boolean": "[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _WHOLE),
    **dict.fromkeys(("float", "double"), rf"{_DIGITS}(?:[eE][+-]?[0-9]++)?|NaN|[+-]?Infinity|[+-]INF"),
    "date": _DATE,
    "timestamp": f"{_DATE}(?:[T ]{_MINUTE}(?:{_SECOND}{_ZONE})?)?",
    "timestamp_ntz": f"{_DATE}(?:[T ]{_MINUTE}(?:{_SECOND})?)?",
}
SECONDS_MIN: Final = -62_135_596_800
SECONDS_MAX: Final = 253_402_300_799
"""The first and the last second of the years 1 to 9999, which a whole number in a ``TIMESTAMP`` may name in JSON."""
DAYS_MIN: Final = -719_162
DAYS_MAX: Final = 2_932_896
"""The same of days."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def notation(kind: types.Type) -> str | None:
    """Return the regular expression of the whole of a text; None: any text is a value (``STRING``, ``BINARY``).

    >>> all(re.fullmatch(notation(types.Decimal(9, 2)), text) for text in ("1", "-.5", "+1.", "1e3", "007"))
    True
    >>> any(re.fullmatch(notation(types.Decimal(9, 2)), text) for text in ("68,83", " 1", "1d", "0x1", "1_0", ""))
    False
    >>> bool(re.fullmatch(notation(types.Atom("timestamp")), "2020-01-02 03:04:05.123456000+0100"))
    True
    >>> [text for text in ("12:30", "2020-1-2", "2020-01-02 03:04:05.1234567") if re.fullmatch(_DATE, text)]
    []

    Raises `TypeError` for a type whose values no text is.
    """
    match kind:
        case types.Decimal():
            return _DECIMAL
        case types.Atom("string" | "binary"):
            return None
        case types.Atom(name):
            return _OF_ATOMS[name]
        case _:
            raise TypeError(f"no text is a value of {kind}")


def value(kind: types.Type, text: str) -> Any:
    """Return the value of a text as Python has it; None: it is none of this type.

    It says what Spark says, by code of its own: simulations decode by it, and a test compares the two.

    >>> value(types.Decimal(6, 2), "68.825"), value(types.Decimal(6, 2), "68,83"), value(types.Atom("tinyint"), "+7")
    (Decimal('68.83'), None, 7)
    >>> value(types.Atom("timestamp"), "2020-01-02 03:04:05+01").isoformat(), value(types.Atom("date"), "2023-02-29")
    ('2020-01-02T02:04:05+00:00', None)
    """
    wanted = notation(kind)
    if wanted is not None and not re.fullmatch(wanted, text):
        return None
    try:
        return digits(kind, Decimal(text)) if isinstance(kind, types.Decimal) else _READ[kind.name](text)  # type: ignore[union-attr]  # the others have no notation
    except (ValueError, OverflowError):
        return None


def digits(kind: types.Decimal, number: Decimal) -> Decimal | None:
    """Return a number with the digits of its column, rounded half up as Spark does; None: it has too many before it.

    >>> digits(types.Decimal(4, 2), Decimal("-1.005")), digits(types.Decimal(4, 2), Decimal("99.995"))
    (Decimal('-1.01'), None)
    """
    try:
        found = number.quantize(Decimal(1).scaleb(-kind.scale), context=_ROUNDED)
    except InvalidOperation:
        return None
    return found + 0 if found.adjusted() + 1 <= kind.precision - kind.scale or not found else None


def of_base64(text: str) -> bytes | None:
    r"""Return the bytes that a text stands for in JSON, where alone ``BINARY`` is in base 64; None: it is none.

    >>> of_base64("QUI="), of_base64("QUI"), of_base64("QUI=\nQQ=="), of_base64("Q U I=")
    (b'AB', None, b'ABA', None)
    """
    if not re.fullmatch(rf"(?:[\x00-\x20]*+(?:{_BASE64}))*+[\x00-\x20]*+", text):
        return None
    return b"".join(map(base64.b64decode, re.findall(_BASE64, text)))


_ROUNDED: Final = Context(prec=2_100, rounding=ROUND_HALF_UP, traps=[InvalidOperation])
"""Digits enough for any exponent that the notation has, before and after the point."""


def _whole(bits: int) -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        number = int(text)
        return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None

    return read


def _floating(text: str) -> float:
    return float(text.replace("INF", "inf")) + 0.0  # there is one zero


def _moment(text: str) -> dt.datetime:
    second, point, fraction = text.replace("UTC", "Z").partition(".")
    if point:
        zone = fraction.lstrip("0123456789")
        second += f".{fraction.removesuffix(zone)[:6]:0<6}{zone}"
    return dt.datetime.fromisoformat(re.sub(" (?=[Z+-])", "", second))


def _timestamp(text: str) -> dt.datetime:
    found = _moment(text)
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": lambda text: text.lower() == "true",
    **{name: _whole(bits) for name, bits in _BITS.items()},
    "float": lambda text: ctypes.c_float(_floating(text)).value,
    "double": _floating,
    "string": str,
    "binary": str.encode,
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
    "timestamp_ntz": _moment,
}


_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""After so many years and days the calendar is the same again."""
_EPOCH: Final = dt.date(1970, 1, 1).toordinal() - 1
_IN_A_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""By unit."""


def readable(rows: pa.Table) -> pa.Table:
    """Return ``rows`` in columns that Python has a value for each cell of; the dates and times of others are texts.

    Dates in Python have the years 1 to 9999; those of Arrow and Spark go further.  The texts are in ISO 8601.

    >>> readable(pa.table({"a": pa.array([-735525, None], pa.int32()).cast(pa.date32())}))["a"].to_pylist()
    ['-0044-03-15', None]
    >>> readable(pa.table({"a": pa.array([[3_663_728], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))}))["a"][0]
    <pyarrow.ListScalar: ['12000-12-12']>
    """
    for place, field in enumerate(rows.schema):
        kind, column = _kind(field.type), rows.column(place)
        if kind == field.type:
            continue
        try:
            column.to_pylist()
        except (OverflowError, ValueError):
            cells = pa.array([_cell(cell) for cell in column], kind)
            rows = rows.set_column(place, field.with_type(kind), cells)
    return rows


def _kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of values whose dates and times are texts."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(_kind(kind.key_type), _kind(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_kind(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kind(field.type)) for field in kind])
    return kind


def _cell(cell: pa.Scalar) -> Any:
    """Return a value for Python, with texts for dates and times."""
    kind = cell.type
    if not cell.is_valid:
        return None
    if pa.types.is_date(kind):
        return _day(cell.cast(pa.date32()).cast(pa.int32()).as_py())
    if pa.types.is_timestamp(kind):
        day, rest = divmod(cell.value, _IN_A_DAY[kind.unit])
        passed = dt.timedelta(microseconds=rest * _IN_A_DAY["us"] // _IN_A_DAY[kind.unit])
        time = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) + passed).time()
        return f"{_day(day)} {time.isoformat()}{'' if kind.tz is None else 'Z'}"
    if pa.types.is_map(kind):
        return [(_cell(entry["key"]), _cell(entry["value"])) for entry in cell.values]
    if pa.types.is_list(kind):
        return [_cell(value) for value in cell.values]
    if pa.types.is_struct(kind):
        return {name: _cell(value) for name, value in cell.items()}
    return cell.as_py()


def _day(day: int) -> str:
    """Return a day, counted from 1970-01-01.

    >>> _day(-719_529), _day(0), _day(3_663_728)
    ('-0001-12-31', '1970-01-01', '12000-12-12')
    """
    cycles, rest = divmod(day + _EPOCH, _CYCLE_DAYS)
    found = dt.date.fromordinal(rest + 1)
    year = found.year + _CYCLE_YEARS * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{found.month:02}-{found.day:02}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a text and its position there; no code changes it or embeds it in another text.

    ``given``: a value for each question mark, in the order of the text.
    """

    text: str
    start: Position
    given: tuple[pa.Scalar, ...] = ()


@contextmanager
def within(start: Position | None) -> Iterator[None]:
    """Translate the position of a `DefinitionError` in an excerpt to its position in the whole text.

    The excerpt begins at ``start``.  An error without a position gets ``start``; if ``start`` is None, nothing changes.

    >>> with within(Position(3, 10)):
    ...     raise DefinitionError("no such column", Position(1, 5))
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: no such column (at line 3, column 14)
    """
    try:
        yield
    except DefinitionError as error:
        if start is None:
            raise
        position = start if error.position is None else error.position.after(start)
        raise DefinitionError(error.message, position) from error
