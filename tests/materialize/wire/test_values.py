"""The values of every type go to JSON and come back."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Struct, Type, parse
from strandline.algebra.types import Decimal as DecimalType
from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.task import canonical
from strandline.materialize.wire.values import column, listed, plain

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
YEARS = {"min_value": dt.datetime(1, 1, 2), "max_value": dt.datetime(9999, 12, 30)}  # noqa: DTZ001
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": TEXT,
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(**YEARS, timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(**YEARS),
}
TYPES = st.recursive(
    st.sampled_from([Atom(name) for name in VALUES])
    | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))),
    lambda inner: (
        inner.map(Array)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: Struct(tuple((f"f{n}", k) for n, k in enumerate(kinds)))
        )
    ),
    max_leaves=4,
)


def values(kind: Type) -> st.SearchStrategy[Any]:
    """Return values of a type, None among them."""
    match kind:
        case Atom(name):
            known = VALUES[name]
        case DecimalType(precision, scale):
            most = 10**precision - 1
            known = st.integers(-most, most).map(lambda n: Decimal(f"{n}E-{scale}"))
        case Array(element):
            known = st.lists(values(element), max_size=3)
        case Struct(fields):
            known = st.fixed_dictionaries({name: values(field) for name, field in fields})
    return st.none() | known


@given(st.data(), TYPES)
def test_every_value_comes_back(data: st.DataObject, kind: Type) -> None:
    """Damage: a row that was loaded differs from the row that was stored, so it is changed, doubled or kept."""
    given_values = pa.array(data.draw(st.lists(values(kind), max_size=3)), arrow(kind))
    text = msgspec.json.encode(listed(plain(given_values)))
    found = column("c", json.loads(text), kind)
    assert found.type == given_values.type
    assert [canonical(each) for each in found.to_pylist()] == [canonical(each) for each in given_values.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("decimal(38,2)", Decimal("12345678901234567890.10"), '"12345678901234567890.10"'),
        ("decimal(10,7)", Decimal("0.0000001"), '"0.0000001"'),
        ("bigint", 2**63 - 1, "9223372036854775807"),
        ("double", 1.0, "1.0"),
        ("double", math.nan, '"NaN"'),
        ("double", -math.inf, '"-Infinity"'),
        ("binary", b"\x00\xff", '"AP8="'),
        ("date", dt.date(1, 1, 1), '"0001-01-01"'),
        ("timestamp", dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC), '"2024-01-02T03:04:05.000006Z"'),
        ("timestamp_ntz", dt.datetime(2024, 1, 2), '"2024-01-02T00:00:00.000000"'),  # noqa: DTZ001
        ("struct<b:array<double>,a:binary>", {"b": [math.inf, None], "a": b"x"}, '{"a":"eA==","b":["Infinity",null]}'),
        ("string", '\x00\U0001f30a"', '"\\u0000\U0001f30a\\""'),
    ],
)
def test_values_are_written_as_documented(kind: str, value: Any, text: str) -> None:
    """Damage: an endpoint rounds a decimal, or reads a timestamp in its own zone."""
    assert msgspec.json.encode(listed(plain(pa.array([value], arrow(parse("c", kind)))))).decode() == f"[{text}]"


@pytest.mark.parametrize(
    ("kind", "returned", "meant"),
    [
        ("int", "7", 7),
        ("int", 7.0, 7),
        ("double", 1, 1.0),
        ("double", "1e3", 1000.0),
        ("decimal(10,2)", 1.5, Decimal("1.50")),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,0)", 7, Decimal(7)),
        ("timestamp", "2024-01-01T02:00:00+02:00", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("timestamp", "2024-01-01 00:00:00", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("struct<a:int,b:int>", {"a": 1, "more": 2}, {"a": 1, "b": None}),
    ],
)
def test_other_spellings_of_an_endpoint_are_understood(kind: str, returned: Any, meant: Any) -> None:
    """Damage: a connector that keeps numbers in its own way cannot be used."""
    assert column("c", [returned], parse("c", kind)).to_pylist() == [meant]


@pytest.mark.parametrize(
    ("kind", "returned"),
    [
        ("int", "x"),
        ("int", 1.5),
        ("int", True),
        ("tinyint", 300),
        ("bigint", 2**63),
        ("boolean", "true"),
        ("double", "one"),
        ("double", {}),
        ("decimal(4,2)", "123.45"),
        ("decimal(4,2)", True),
        ("string", 1),
        ("binary", "not base64!"),
        ("date", "today"),
        ("timestamp", 5),
        ("timestamp_ntz", "2024-13-01T00:00:00"),
        ("array<int>", "[1]"),
        ("struct<a:int>", [1]),
        ("struct<a:int>", {"a": "x"}),
    ],
)
def test_what_is_no_value_of_the_type_is_refused_by_name(kind: str, returned: Any) -> None:
    """Damage: a wrong value reaches the collection's comparison and rows are lost without a word."""
    with pytest.raises(ProtocolViolation, match="column 'c'"):
        column("c", [None, returned], parse("c", kind))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("date", pa.date32()), ("timestamp", pa.timestamp("us", "UTC")), ("timestamp_ntz", pa.timestamp("us"))],
)
def test_moments_of_all_years_are_read_back(name: str, kind: pa.DataType) -> None:
    """Damage: a date of Caesar's is stored, and a table that holds it cannot be verified or loaded."""
    days = pa.array([-735525, -719528, -719162, 0, None, 2932896, 2932897, 3663383], pa.int32()).cast(pa.date32())
    given = days if name == "date" else days.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    assert column("a", plain(given).to_pylist(), Atom(name)).equals(given)
    with pytest.raises(ProtocolViolation, match="column 'a': '-0044-02-31' is no"):
        column("a", ["-0044-02-31"], Atom(name))
