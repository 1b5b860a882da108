"""Texts of PostgreSQL as values: exact or refused, and the same whatever stands beside them."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.types import Array, Atom, Decimal, Struct
from strandline.errors import DefinitionError
from strandline.sources.readers.postgres.row_values import arrow, items, spark_type, typed, value

YEARS = datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30")
TEXTS = {
    Atom("tinyint"): ["1", "-128", "128", "x", "+7", "1_0", "١", "", " 1", "0x10"],
    Atom("bigint"): ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "007", "1.0"],
    Atom("float"): ["0.1", "3.4028235e+38", "1e+39", "NaN", "Infinity", "-Infinity", "-0", "1e-50", "16777217", "inf"],
    Atom("double"): ["0.1", "1e+300", "1e+400", "NaN", "Infinity", "nan", "-0", "1.", ".5", "1e5", "0x10", "1_0"],
    Atom("boolean"): ["t", "f", "true", "x", ""],
    Atom("string"): ["", "NULL", "ä€𝄞", "a\nb"],
    Atom("binary"): ["\\x", "\\x00ff", "ff", "\\xzz", "\\x0"],
    Atom("date"): ["2024-02-29", "2023-02-29", "0001-01-01", "0000-01-01", "infinity", "0044-03-15 BC", "10000-01-01"],
    Atom("timestamp"): [
        "2024-02-29 12:00:00+00", "2024-02-29 12:00:00.1+00", "2024-02-29 12:00:00.123456+05:30",
        "2024-02-29 12:00:00-00:00:28", "2024-02-30 00:00:00+00", "2024-02-29 24:00:00+00", "2024-02-29 23:59:60+00",
        "2024-02-29 12:00:00", "9999-12-31 23:59:59.999999+00", "0000-01-01 00:00:00+00", "infinity", "-infinity",
        "0001-01-01 00:00:00+00 BC", "2024-02-29T12:00:00+00", "0001-01-01 00:00:00+23",
    ],
    Atom("timestamp_ntz"): ["2024-02-29 12:00:00.000001", "2024-02-29 12:00:00+00", "infinity", "2024-13-01 00:00:00"],
    Decimal(3, 1): ["1.5", "1.50", "1.55", "99.9", "100", "-99.9", "NaN", "Infinity", "1e2", "0.00", "", "-0", "01"],
    Decimal(38, 0): ["1" * 38, "1" * 39, "0.5", "1." + "0" * 50],
    Decimal(38, 38): ["0.5", "-0." + "9" * 38, "0." + "1" * 39, "1"],
    Array(Atom("int")): ["{}", "{1,NULL,3}", '{"1"}', "{{1},{2}}", "[0:1]={1,2}", "{1,}", "{x}", "{", "{1}}", "{1 2}"],
    Array(Atom("string")): ['{a,"b,c","d\\"e",NULL,"NULL",""}', '{"a\\\\b"}', '{"a" }', "{null}"],
    Array(Decimal(4, 2)): ["{1.25,NULL}", "{1.255}"],
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_a_value_does_not_depend_on_what_stands_beside_it(kind):
    """Damage: the same row is good in one step and an error in another, so a collection is not definite."""
    chance = random.Random(3)
    texts = [text.encode() for text in TEXTS[kind]]
    alone = {text: (typed([text], kind)[0][0].as_py(), typed([text], kind)[1].get(0)) for text in texts}
    for text, (found, reason) in alone.items():
        try:
            expected, why = value(text, kind), None
        except ValueError as error:
            expected, why = None, str(error)
        assert (repr(found), reason) == (repr(_as_stored(expected, kind)), why), text
    for _ in range(50):
        some = chance.choices([*texts, None], k=chance.randint(1, 6))
        values, reasons = typed(some, kind)
        assert values.type == arrow(kind)
        found = [(repr(each), reasons.get(n)) for n, each in enumerate(values.to_pylist())]
        assert found == [(repr(alone[t][0]), alone[t][1]) if t is not None else ("None", None) for t in some]


def _as_stored(found, kind):
    return None if found is None else pa.array([found], arrow(kind))[0].as_py()


def test_what_is_read_is_what_was_written():
    """Damage: a value is rounded, shifted by a zone, or takes its neighbour's place."""
    assert value(b"12345678.90", Decimal(10, 2)) == Number("12345678.90")
    assert value(b"2024-02-29", Atom("date")) == date(2024, 2, 29)
    assert value(b"2024-02-29 12:00:00.5+05:30", Atom("timestamp")) == datetime(
        2024, 2, 29, 6, 30, 0, 500_000, tzinfo=UTC
    )
    assert value(b"2024-02-29 12:00:00", Atom("timestamp")) == datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert value(b"\\x00ff", Atom("binary")) == b"\x00\xff"
    assert math.copysign(1, value(b"-0", Atom("double"))) == 1
    assert typed([b"\xff", b"a"], Atom("string"))[1] == {0: "it is not UTF-8"}
    assert items('{a,"b,c",NULL,"NULL","d\\"e"}') == ["a", "b,c", None, "NULL", 'd"e']


@given(
    st.datetimes(YEARS[0], YEARS[1]),
    st.integers(-15 * 3600, 15 * 3600),
)
def test_an_instant_is_the_same_in_every_zone(shown, ahead):
    """Damage: a time is read as another one where its session had another zone."""
    sign, rest = ("+" if ahead >= 0 else "-"), abs(ahead)
    zone = f"{sign}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    local = shown + timedelta(seconds=ahead)
    if YEARS[0] <= local:
        assert value(f"{local.isoformat(' ')}{zone}".encode(), Atom("timestamp")) == shown.replace(tzinfo=UTC)


@given(st.decimals(-(10**10), 10**10, places=4), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_is_exact_or_refused(number, precision, scale):
    """Damage: an amount of money is rounded."""
    kind = Decimal(max(precision, scale), scale)
    values, reasons = typed([str(number).encode()], kind)
    if 0 in reasons:
        whole = number.scaleb(scale)
        assert whole != int(whole) or abs(int(whole)) >= 10**kind.precision
    else:
        assert values[0].as_py() == number


def _written(texts, delimiter):
    """An array as PostgreSQL's `array_out` writes it."""

    def element(text):
        special = {'"', "\\", "{", "}", delimiter, *" \t\n\r\v\f"}
        if text is None or (text and text.upper() != "NULL" and special.isdisjoint(text)):
            return "NULL" if text is None else text
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + delimiter.join(map(element, texts)) + "}"


@given(st.lists(st.none() | st.text('aB1(),;:|^.*"\\{} \nNULLÄ')), st.sampled_from(",;:|^.*-]"))
def test_an_array_has_the_elements_that_were_written(texts, delimiter):
    """Damage: an array is split within an element, or not between two."""
    assert items(_written(texts, delimiter), delimiter) == texts


def test_types_that_have_no_text_form_here_are_refused():
    """Damage: a column is read as NULL throughout."""
    for kind in (Struct((("a", Atom("int")),)), Array(Array(Atom("int")))):
        with pytest.raises(DefinitionError, match="plain type"):
            arrow(kind)


def test_every_type_has_a_type_here():
    """Damage: `discover` offers a column that cannot hold what is there."""
    names = ["smallint", "real", "double precision", "numeric(39,2)", "numeric(5,-2)", "date", "bytea", "json", "mood"]
    found = [spark_type(name) for name in names]
    assert found == ["smallint", "float", "double", "string", "string", "date", "binary", "string", "string"]
    assert [spark_type(n) for n in ("timestamp(3) without time zone", "character varying(9)", "text[]", "boolean")] == [
        "timestamp_ntz", "string", "array<string>", "boolean",
    ]  # fmt: skip
