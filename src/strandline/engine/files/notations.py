"""Notations as Spark's expressions: which value a text is, and none by a guess (`algebra.notation`).

Fields of CSV and keys are read as texts, and `value` makes values of them.  JSON has values of its own and types that
take texts beside them, as `DECIMAL` takes ``"1.5"`` and ``1.5``.  Spark would read such a text as it likes, so these
types are read as variants, which tell a text from a number, and `JsonValues` makes values of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import notation, types
from strandline.algebra.formats import FileFormat
from strandline.algebra.schema import quote

_VARIANT: Final = "variant"
_YEARS: Final = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_DECIMAL_MAX: Final = 1e39
_DECIMAL_MIN: Final = 1e-39
"""No decimal column holds more than the one, and what is less than the other is 0 in each."""


def value(text: Column, kind: str, form: FileFormat) -> Column:
    """Return the value of a text, of the type that ``kind`` writes; NULL: the text is none of it, or NULL."""
    parsed = types.parse("", kind)
    wanted = notation.notation(parsed)
    if wanted is None:
        return text.cast(kind)
    pattern = _own_pattern(parsed, form)
    if pattern is not None:
        return F.try_to_timestamp(text, F.lit(pattern)).cast(kind)
    found = text.try_cast(kind)
    if parsed == types.Atom("timestamp"):  # a zone may move the first and the last hours out of the years
        first, last = (F.lit(each).cast(kind) for each in _YEARS)
        found = F.when(found.between(first, last), found)
    return F.when(_SHORT[parsed.name if isinstance(parsed, types.Atom) else "decimal"](text) | _is(text, wanted), found)


def _own_pattern(kind: types.Type, form: FileFormat) -> str | None:
    """Return the format's own pattern of the values of a type; None: it has none."""
    match kind:
        case types.Atom("date"):
            return form.date_format
        case types.Atom("timestamp" | "timestamp_ntz"):
            return form.timestamp_format
        case _:
            return None


def _is(text: Column, wanted: str) -> Column:
    return text.rlike(rf"\A(?:{wanted})\z")


# A regular expression costs as much as all else that a field costs.  So for the usual texts a look at a few characters
# takes its place: what looks so, and is a value to Spark's CAST, matches the notation.


def _at(text: Column, place: int, first: str, last: str) -> Column:
    """Return whether the character at a place, from the end if it is negative, is one of these."""
    return F.substring(text, place, 1).between(first, last)


def _looks_whole(text: Column) -> Column:
    return _at(text, 1, "+", "9") & _at(text, -1, "0", "9")


def _looks_decimal(text: Column) -> Column:
    ascii_ = F.length(text) == F.octet_length(text)  # Spark takes the digits of all alphabets
    return _looks_whole(text) & ascii_ & ~text.contains("e") & ~text.contains("E")


def _looks_floating(text: Column) -> Column:
    return _looks_whole(text) & ~text.contains("x") & ~text.contains("X")


def _looks_boolean(text: Column) -> Column:
    return text.isin("true", "false")


def _has_date(text: Column) -> Column:
    return _at(text, 5, "-", "-") & _at(text, 8, "-", "-") & (text >= "0001")


def _looks_date(text: Column) -> Column:
    return (F.octet_length(text) == len("2020-01-02")) & _has_date(text) & _at(text, -1, "0", "9")


def _has_time(text: Column) -> Column:
    return _has_date(text) & _at(text, 14, ":", ":") & _at(text, 17, ":", ":") & _at(text, 19, "0", "9")


def _looks_clock(text: Column) -> Column:
    length = F.octet_length(text)
    fraction = _at(text, 20, ".", ".") & F.substring(text, 21, 6).try_cast("int").isNotNull() & _at(text, 21, "0", "9")
    fraction = fraction & length.between(21, 26) & _at(text, -1, "0", "9")
    return _has_time(text) & ((length == len("2020-01-02 03:04:05")) | fraction)


def _looks_moment(text: Column) -> Column:
    return _looks_clock(F.when(text.endswith("Z"), F.substring(text, 1, F.length(text) - 1)).otherwise(text))


_SHORT: Final[dict[str, Callable[[Column], Column]]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _looks_whole),
    **dict.fromkeys(("float", "double"), _looks_floating),
    "decimal": _looks_decimal,
    "boolean": _looks_boolean,
    "date": _looks_date,
    "timestamp": _looks_moment,
    "timestamp_ntz": _looks_clock,
}


@dataclass(frozen=True, slots=True)
class JsonValues:
    """How values of JSON become values of types.

    ``days``: as Debezium writes them.  It writes a date as a number of days, and moments, by its configuration, as
    texts or as numbers of milli-, micro- or nanoseconds.  Which of these a number is does not show in the message.  So
    a number is a date then, and is no timestamp.  Otherwise a number is no date, and a timestamp in seconds.

    Debezium: "data types" (io.debezium.time).
    """

    form: FileFormat
    days: bool = False

    def read_as(self, kind: types.Type) -> str:
        """Return the type by which Spark reads a value of ``kind``.

        >>> from strandline.algebra.formats import Encoding
        >>> JsonValues(FileFormat(Encoding.JSON)).read_as(types.parse("", "struct<a:int,b:array<decimal(4,2)>>"))
        'struct<`a`:int,`b`:array<variant>>'
        """
        match kind:
            case types.Array(element):
                return f"array<{self.read_as(element)}>"
            case types.Struct(fields):
                return f"struct<{','.join(f'{quote(name)}:{self.read_as(field)}' for name, field in fields)}>"
            case types.Atom("date" | "timestamp_ntz") if _own_pattern(kind, self.form) is None and not self.days:
                return "string"  # no number is one of its texts
            case types.Atom("tinyint"):
                return "smallint"  # Spark's parser takes the numbers up to 255 for bytes, and 128 for -128
            case types.Decimal() | types.Atom("date" | "timestamp" | "timestamp_ntz" | "binary"):
                return _VARIANT
            case _:
                return _text_of(kind)

    def is_plain(self, kind: types.Type) -> bool:
        """Return whether Spark reads all that is in a value of ``kind`` as it is, because it takes no texts."""
        return self.read_as(kind) == _text_of(kind)

    def made(self, found: Column, kind: types.Type, typed: Column) -> Column:
        """Return the value of ``kind`` that was found as `read_as` says; NULL: there is none, or it is none.

        ``typed``: the same value read as `with_digits` says; it need be there only where `lacks_digits`.
        """
        if self.is_plain(kind):
            return found
        match kind:
            case types.Array(element):
                return F.transform(found, lambda each, at: self.made(each, element, F.get(typed, at)))
            case types.Struct(fields):
                made = (self.made(found[name], field, typed[name]).alias(name) for name, field in fields)
                return F.when(found.isNotNull(), F.struct(*made))
            case _:
                return self._leaf(found, kind, typed)

    def _leaf(self, found: Column, kind: types.Type, typed: Column) -> Column:
        own = _text_of(kind)
        if self.read_as(kind) == "string":
            return value(found, own, self.form)
        if kind == types.Atom("tinyint"):
            return found.try_cast(own)
        held, text = F.schema_of_variant(found), F.try_variant_get(found, "$", "string")
        is_text, is_whole = held == "STRING", held == "BIGINT"
        match kind:
            case types.Decimal():
                rounded = F.when(_lacks_digits(found), typed).when(_is_tiny(found), F.lit(0).cast(own))
                exact = F.try_variant_get(found, "$", own)
                return (
                    F.when(is_text, value(text, own, self.form))
                    .when(is_whole | held.startswith("DECIMAL"), exact)
                    .otherwise(rounded)
                )
            case types.Atom("binary"):
                found = F.try_to_binary(text, F.lit("base64"))
                return F.when(is_text & (F.base64(found) == text), found)
            case types.Atom("date") if self.days:
                days = F.try_variant_get(found, "$", "int")
                in_years = is_whole & days.between(notation.DAYS_MIN, notation.DAYS_MAX)
                return F.when(is_text, value(text, own, self.form)).when(in_years, F.date_from_unix_date(days))
            case types.Atom("timestamp") if not self.days:
                seconds = F.try_variant_get(found, "$", "bigint")
                in_years = is_whole & seconds.between(notation.SECONDS_MIN, notation.SECONDS_MAX)
                return F.when(is_text, value(text, own, self.form)).when(in_years, F.timestamp_seconds(seconds))
            case _:
                return F.when(is_text, value(text, own, self.form))

    def with_digits(self, kind: types.Type) -> str:
        """Return the type by which Spark reads the numbers in a value of ``kind`` with all their digits."""
        match kind:
            case types.Array(element):
                return f"array<{self.with_digits(element)}>"
            case types.Struct(fields):
                return f"struct<{','.join(f'{quote(name)}:{self.with_digits(field)}' for name, field in fields)}>"
            case types.Decimal():
                return _text_of(kind)
            case _:
                return "string"

    def lacks_digits(self, found: Column, kind: types.Type) -> Column:
        """Return whether a decimal was found as a double, as one with an exponent is."""
        if not _has_decimals(kind):
            return F.lit(False)
        match kind:
            case types.Array(element):
                lacks = F.exists(found, lambda each: self.lacks_digits(each, element))
            case types.Struct(fields):
                those = [self.lacks_digits(found[name], field) for name, field in fields if _has_decimals(field)]
                lacks = reduce(Column.__or__, those)
            case _:
                lacks = _lacks_digits(found)
        return F.coalesce(lacks, F.lit(False))

    def lost(self, found: Column, made: Column, kind: types.Type) -> Column:
        """Return whether a value that was found could not be made one of ``kind``."""
        if self.is_plain(kind):
            return F.lit(False)
        match kind:
            case types.Array(element):
                lost = F.exists(F.zip_with(found, made, lambda f, m: self.lost(f, m, element)), lambda each: each)
            case types.Struct(fields):
                those = [self.lost(found[n], made[n], field) for n, field in fields if not self.is_plain(field)]
                lost = reduce(Column.__or__, those)
            case _:
                there = found.isNotNull()
                lost = (there & ~F.is_variant_null(found) if self.read_as(kind) == _VARIANT else there) & made.isNull()
        return F.coalesce(lost, F.lit(False))


def _lacks_digits(found: Column) -> Column:
    """Return whether a variant is a double that a decimal may hold.

    Others are not read again: to see that ``1e99999999`` is too large, and that ``1e-99999999`` is 0, Spark writes out
    all the digits, which takes minutes.
    """
    size = F.abs(F.try_variant_get(found, "$", "double"))
    return (F.schema_of_variant(found) == "DOUBLE") & size.between(_DECIMAL_MIN, _DECIMAL_MAX)


def _is_tiny(found: Column) -> Column:
    return (F.schema_of_variant(found) == "DOUBLE") & (F.abs(F.try_variant_get(found, "$", "double")) < _DECIMAL_MIN)


def _has_decimals(kind: types.Type) -> bool:
    match kind:
        case types.Array(element):
            return _has_decimals(element)
        case types.Struct(fields):
            return any(_has_decimals(field) for _, field in fields)
        case _:
            return isinstance(kind, types.Decimal)


def _text_of(kind: types.Type) -> str:
    """Return the type as Spark writes it.

    >>> _text_of(types.parse("", "array<struct<`a b`:decimal(4,2)>>"))
    'array<struct<`a b`:decimal(4,2)>>'
    """
    match kind:
        case types.Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case types.Array(element):
            return f"array<{_text_of(element)}>"
        case types.Struct(fields):
            return f"struct<{','.join(f'{quote(name)}:{_text_of(field)}' for name, field in fields)}>"
        case types.Atom(name):
            return name
