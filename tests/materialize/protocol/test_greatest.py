"""Greatest keys by Arrow are those by Python, of every type that has an order."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.materialize.protocol.greatest import greater, joined, of_rows, ordered, up_to
from strandline.materialize.protocol.task import Binding

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    "string": (pa.string(), st.text("aZé\U0001f600\uffff\0", max_size=3)),
    "date": (pa.date32(), st.dates(date(1969, 12, 30), date(1970, 1, 3)) | st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.integers(-5, 5).map(lambda us: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)),
    ),
}


@st.composite
def keyed(draw: st.DrawFn) -> tuple[Binding, pa.Table]:
    """Return a binding of one to three key columns, and rows."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    names = [f"k{place}" for place in range(len(kinds))]
    binding = Binding("v", "t", tuple(names), Schema(tuple(map(Column, names, kinds))))
    count = draw(st.integers(0, 6))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[kind][1], min_size=count, max_size=count)), VALUES[kind][0])
        for kind in kinds
    ]
    return binding, pa.table(columns, names=names)


def sorting(row: dict[str, Any]) -> list[tuple[bool, Any]]:
    """Return a key as Python orders keys: NULL first, texts by their bytes."""
    values = [each.encode() if isinstance(each, str) else each for each in row.values()]
    return [(value is not None, value) for value in values]


@given(keyed(), st.data())
def test_exactly_the_keys_that_are_not_greater_are_asked_for(
    found: tuple[Binding, pa.Table], data: st.DataObject
) -> None:
    """Damage: a row that is there is not loaded, and a total begins anew; or every key is asked for."""
    binding, rows = found
    stored = rows.slice(0, data.draw(st.integers(0, len(rows))))
    asked = up_to(binding, rows, of_rows(binding, stored)).to_pylist()
    most = max(map(sorting, stored.to_pylist()), default=None)
    assert asked == [row for row in rows.to_pylist() if most is not None and sorting(row) <= most]


@given(keyed(), st.data())
def test_the_greatest_key_of_parts_is_that_of_the_whole(found: tuple[Binding, pa.Table], data: st.DataObject) -> None:
    """Damage: the order in which batches or splits come decides what is loaded."""
    binding, rows = found
    cut = data.draw(st.integers(0, len(rows)))
    parts = [of_rows(binding, part) for part in (rows.slice(0, cut), rows.slice(cut))]
    assert greater(*parts) == of_rows(binding, rows) == greater(*reversed(parts))
    assert joined([{"t": part, str(part): None} for part in parts])["t"] == of_rows(binding, rows)


def test_what_one_split_does_not_know_is_not_known() -> None:
    """Damage: keys that another split has stored are not asked for."""
    assert joined([{"a": (1,), "b": None}, {"b": (2,)}]) == {"b": (2,)}


@pytest.mark.parametrize("kind", ["double", "boolean", "decimal(10,2)", "array<int>", "binary"])
def test_a_type_without_one_order_everywhere_has_no_greatest_key(kind: str) -> None:
    """Damage: NaN, or 1.0 and 1.00, are compared in two ways, and a row that is there is not loaded."""
    schema = Schema((Column("a", "int"), Column("b", kind)))
    assert not ordered(Binding("v", "t", ("a", "b"), schema))
    assert ordered(Binding("v", "t", ("a",), schema))
    assert not ordered(Binding("v", "t", ("a",), schema, delta=True))
