"""Notations as Spark's expressions: which value a text is, and none by a guess (`algebra.notation`).

Fields of CSV and keys are read as texts, and `value` makes values of them.  So are those values of JSON that may be
texts beside numbers, as `DECIMAL` takes ``"1.5"`` and ``1.5``: Spark alone would read such a text as it likes.

A text does not show two things: digits that a number had beyond those of a double, and whether ``20200102`` stood in
quotes.  Only a record in which one of these may matter is read again (`JsonValues.read_again_as`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import notation, types
from strandline.algebra.messages import FileFormat
from strandline.algebra.schema import Column as Field
from strandline.algebra.schema import struct

_YEARS: Final = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
_LONG_NUMBER: Final = r"[0-9](?:(?=[0-9.]{16})[0-9]*+\.|(?=[0-9]{15})[0-9]*+[eE])"
"""A number whose digits may be more than the 15 that every double keeps; whole numbers keep all of theirs."""
_DOUBLE_DIGITS: Final = 15
_NUMBER: Final = r"\A-?[0-9]++(?:\.[0-9]++)?+(?:E-?[0-9]++)?+\z"
"""What the text of a number looks like, as Spark writes it."""


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
    match parsed:
        case types.Atom("tinyint" | "smallint" | "int" | "bigint"):  # more than a sign and digits Spark only trims
            sound = text.between("+", ":") & F.substring(text, -1, 1).between("0", "9")
        case types.Atom("boolean"):
            sound = text.isin("true", "false") | _is(text, wanted)
        case _:
            sound = _is(text, wanted)
    if parsed == types.Atom("timestamp"):  # a zone may move the first and the last hours out of the years
        outer = reduce(Column.__or__, (text.startswith(each[: len("0001-01-01")]) for each in _YEARS))
        sound = sound & (~outer | found.between(*(F.lit(each).cast(kind) for each in _YEARS)))
    return F.when(sound, found)


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

        >>> from strandline.algebra.messages import Encoding
        >>> JsonValues(FileFormat(Encoding.JSON)).read_as(types.parse("", "struct<a:int,b:array<decimal(4,2)>>"))
        'struct<`a`:int,`b`:array<string>>'
        """
        return _with_leaves(kind, self._leaf_read_as)

    def _leaf_read_as(self, kind: types.Type) -> str:
        match kind:
            case types.Decimal() | types.Atom("date" | "timestamp" | "timestamp_ntz"):
                return "string"
            case types.Atom("tinyint"):
                return "smallint"  # Spark's parser takes the numbers up to 255 for bytes, and 128 for -128
            case _:
                return _text_of(kind)

    def is_plain(self, kind: types.Type) -> bool:
        """Return whether Spark reads all that is in a value of ``kind`` as it is, because it takes no texts."""
        return self.read_as(kind) == _text_of(kind)

    def read_again_as(self, kind: types.Type) -> str:
        """Return the type by which Spark reads a value of ``kind`` again, where its text does not say all of it."""

        def leaf(own: types.Type) -> str:
            if isinstance(own, types.Decimal):
                return _text_of(own)
            return "variant" if self._may_be_number(own) else "string"

        return _with_leaves(kind, leaf)

    def _may_be_number(self, kind: types.Type) -> bool:
        """Return whether it matters if a text that looks like a number stood in quotes."""
        match kind:
            case types.Atom("timestamp") if not self.days:
                return True
            case types.Atom("date") if self.days:
                return True
            case _:
                return _own_pattern(kind, self.form) is not None

    def is_doubtful(self, found: Column, kind: types.Type, text: Column) -> Column:
        """Return whether the record ``text``, found as `read_as` says, must be read again, and may be.

        A decimal that is wrong is an error already; Spark might write out a million digits of it.
        """

        def looks_like_number(each: Column, own: types.Type) -> Column | None:
            return each.rlike(_NUMBER) if self._may_be_number(own) else None

        alike, inexact, wrong = (
            _any(_tests(found, kind, test)) for test in (looks_like_number, _is_inexact, _is_wrong)
        )
        return (alike | (inexact & text.rlike(_LONG_NUMBER))) & ~wrong

    def made(self, found: Column, kind: types.Type, again: Column, is_again: Column) -> Column:
        """Return the value of ``kind`` that was found as `read_as` says; NULL: there is none, or it is none.

        ``again``: the same value as `read_again_as` says, where ``is_again``.
        """
        if self.is_plain(kind):
            return found
        match kind:
            case types.Array(element):
                return F.transform(found, lambda each, at: self.made(each, element, F.get(again, at), is_again))
            case types.Struct(fields):
                made = (self.made(found[name], own, again[name], is_again).alias(name) for name, own in fields)
                return F.when(found.isNotNull(), F.struct(*made))
            case types.Atom("tinyint"):
                return found.try_cast("tinyint")
            case types.Decimal():
                return F.when(is_again, again).otherwise(value(found, _text_of(kind), self.form))
            case _:
                of_text = value(found, _text_of(kind), self.form)
                if not self._may_be_number(kind):
                    return of_text
                held = F.coalesce(F.schema_of_variant(again), F.lit("STRING"))
                return F.when(held == "STRING", of_text).when(held == "BIGINT", self._of_number(again, kind))

    def _of_number(self, number: Column, kind: types.Type) -> Column:
        """Return the value that a whole number is; NULL: it is none."""
        match kind:
            case types.Atom("timestamp") if not self.days:
                seconds = F.try_variant_get(number, "$", "bigint")
                in_years = seconds.between(notation.SECONDS_MIN, notation.SECONDS_MAX)
                return F.when(in_years, F.timestamp_seconds(seconds))
            case types.Atom("date") if self.days:
                days = F.try_variant_get(number, "$", "int")
                return F.when(days.between(notation.DAYS_MIN, notation.DAYS_MAX), F.date_from_unix_date(days))
            case _:
                return F.lit(None).cast(_text_of(kind))

    def lost(self, found: Column, made: Column, kind: types.Type) -> Column:
        """Return whether a value that was found could not be made one of ``kind``."""
        if self.is_plain(kind):
            return F.lit(False)
        match kind:
            case types.Array(element):
                lost = F.zip_with(found, made, lambda f, m: self.lost(f, m, element))
                return _any([F.exists(lost, lambda each: each)])
            case types.Struct(fields):
                return _any([self.lost(found[n], made[n], own) for n, own in fields if not self.is_plain(own)])
            case _:
                return found.isNotNull() & made.isNull()


def _is_inexact(text: Column, kind: types.Type) -> Column | None:
    """Return whether a decimal may be another one than that of the number which a double stands for; None: no decimal.

    It is the same if the text needs no rounding, and with all digits of its scale has no more than every double keeps:
    the number is nearer to it than half of the last digit.
    """
    if not isinstance(kind, types.Decimal):
        return None
    point = F.instr(text, ".")
    before, behind = point - 1, F.length(text) - point
    rounds = (before > _DOUBLE_DIGITS - kind.scale) | (behind > kind.scale)
    return ((point > 0) & rounds) | text.contains("E")


def _is_wrong(text: Column, kind: types.Type) -> Column | None:
    """Return whether a text is no decimal; None: it is of another type."""
    return ~_is(text, notation.notation(kind) or "") if isinstance(kind, types.Decimal) else None


def _tests(found: Column, kind: types.Type, test: Callable[[Column, types.Type], Column | None]) -> list[Column]:
    """Return a test of each value inside ``found``; ``test`` returns None where there is nothing to test."""
    match kind:
        case types.Array(element):
            inner = _tests(found, element, test)
            return [F.exists(found, lambda each: _any(_tests(each, element, test)))] if inner else []
        case types.Struct(fields):
            return [one for name, own in fields for one in _tests(found[name], own, test)]
        case _:
            one = test(found, kind)
            return [] if one is None else [one]


def _any(tests: Sequence[Column]) -> Column:
    """Return whether one of the tests is true, and not whether it is NULL."""
    return reduce(Column.__or__, (F.coalesce(one, F.lit(False)) for one in tests), F.lit(False))


def _with_leaves(kind: types.Type, leaf: Callable[[types.Type], str]) -> str:
    """Return a type as Spark writes it, with others in the places of those that hold no others."""
    match kind:
        case types.Array(element):
            return f"array<{_with_leaves(element, leaf)}>"
        case types.Struct(fields):
            return struct(Field(name, _with_leaves(own, leaf)) for name, own in fields)
        case _:
            return leaf(kind)


def _text_of(kind: types.Type) -> str:
    """Return the type as Spark writes it.

    >>> _text_of(types.parse("", "array<struct<`a b`:decimal(4,2)>>"))
    'array<struct<`a b`:decimal(4,2)>>'
    """

    def leaf(own: types.Type) -> str:
        match own:
            case types.Decimal(precision, scale):
                return f"decimal({precision},{scale})"
            case types.Atom(name):
                return name
            case _:
                raise TypeError(f"{own} holds others")

    return _with_leaves(kind, leaf)
