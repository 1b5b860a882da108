"""Rows become messages of a key, values and a document, and loaded documents become rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding, canonical
from strandline.materialize.wire.rows import loaded, loads, stores
from strandline.materialize.wire.specs import Selection
from strandline.materialize.wire.tuples import pack

BINDING = Binding(
    "c", "t", ("k", "f"), Schema((Column("v", "decimal(10,2)"), Column("f", "double"), Column("k", "int")))
)
TABLE = pa.table(
    {
        "v": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "f": pa.array([-0.0, None]),
        "k": pa.array([1, 2], pa.int32()),
        EXISTS: [True, False],
        DELETE: [False, True],
    }
)


def chosen(document: str = "", keys: tuple[str, ...] = ("k", "f"), values: tuple[str, ...] = ("v",)) -> Selection:
    """Return a selection of fields."""
    return Selection(("t",), keys, values, document, {}, ())


def test_each_row_is_one_store() -> None:
    """Damage: a connector stores a value in another column, or a row under another key."""
    first, second = (each.store for each in stores(3, chosen("flow_document"), TABLE))
    assert (first.binding, first.key_json, first.values_json) == (3, b"[1,0.0]", b'["1.50"]')
    assert first.key_packed == pack([1, 0.0])
    assert first.values_packed == pack(["1.50"])
    assert first.doc_json == b'{"v":"1.50","f":-0.0,"k":1}'
    assert (first.exists, first.delete) == (True, False)
    assert (second.key_json, second.values_json, second.exists, second.delete) == (b"[2,null]", b"[null]", False, True)
    (bare, _) = (each.store for each in stores(0, chosen(keys=("k", "f", "v"), values=()), TABLE))
    assert (bare.doc_json, bare.values_json, bare.values_packed) == (b"", b"[]", b"")


def test_each_key_is_one_load() -> None:
    """Damage: a connector looks for other keys than it stored."""
    keys = TABLE.select(["k", "f"])
    found = [each.load for each in loads(1, keys)]
    stored = [each.store for each in stores(1, chosen(), TABLE)]
    assert [(e.binding, e.key_json, e.key_packed) for e in found] == [(1, e.key_json, e.key_packed) for e in stored]


@given(st.lists(st.tuples(st.none() | st.decimals(-100, 100, places=2), st.none() | st.floats(), st.integers(0, 9))))
def test_a_loaded_document_is_the_row_that_was_stored(rows: list[tuple[Decimal | None, float | None, int]]) -> None:
    """Damage: a row that did not change is stored again and again, or one that did is not."""
    table = pa.table(
        {
            "v": pa.array([v for v, _, _ in rows], pa.decimal128(10, 2)),
            "f": pa.array([f for _, f, _ in rows], pa.float64()),
            "k": pa.array([k for _, _, k in rows], pa.int32()),
            EXISTS: pa.array([False] * len(rows), pa.bool_()),
            DELETE: pa.array([False] * len(rows), pa.bool_()),
        }
    )
    documents = [each.store.doc_json for each in stores(0, chosen("flow_document"), table)]
    found = loaded(BINDING, documents)
    assert found.column_names == list(BINDING.schema.names)
    expected = table.select(found.column_names)
    assert found.schema.types == expected.schema.types
    assert [canonical(each) for each in found.to_pylist()] == [canonical(each) for each in expected.to_pylist()]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be an object"),
        (b"", "not JSON"),
        (b'{"k":"x"}', "column 'k'"),
        (b"\xff", "JSON"),
    ],
)
def test_a_document_that_is_no_row_is_a_violation(document: bytes, text: str) -> None:
    """Damage: a connector's mistake ends us by an error that no caller expects."""
    with pytest.raises(ProtocolViolation, match=text):
        loaded(BINDING, [document])


def test_what_a_document_lacks_is_null_and_what_it_has_besides_is_skipped() -> None:
    """Damage: a document with Flow's own fields in it cannot be loaded."""
    (found,) = loaded(BINDING, [b'{"k":1,"_meta":{"uuid":"x"}}']).to_pylist()
    assert found == {"v": None, "f": None, "k": 1}
    when = Binding("c", "t", ("k",), Schema((Column("k", "timestamp"),)))
    (found,) = loaded(when, [b'{"k":"2024-01-01T00:00:00Z"}']).to_pylist()
    assert found["k"] == dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
