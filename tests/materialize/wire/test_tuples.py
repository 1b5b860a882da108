"""Keys are packed byte for byte as FoundationDB packs them, one tuple at a time and a whole table at once."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.materialize.protocol.task import canonical
from strandline.materialize.wire.tuples import keyed, pack, packed, unpack
from strandline.materialize.wire.values import compact, listed, plain

CASES = json.loads((Path(__file__).parents[2] / "cases" / "packed_tuples.json").read_text())["tuples"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
COLUMNS = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 255, 256, -256])),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXT),
    (pa.binary(), st.binary()),
    (pa.decimal128(38, 9), st.decimals(-(10**20), 10**20, places=9)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    (pa.struct([("b", pa.int32()), ("a", pa.string())]), st.fixed_dictionaries({"b": st.none(), "a": TEXT})),
]


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Array]:
    """Return some columns of equal length."""
    count = draw(st.integers(0, 5))
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    return [
        pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind) for kind, values in chosen
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hex"][:24])
def test_the_known_tuples_are_packed_as_they_must(case: dict[str, Any]) -> None:
    """Damage: a connector that looks keys up by their bytes finds none of the rows that others stored."""
    assert pack(case["json"]).hex() == case["hex"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hex"][:24])
def test_a_packed_tuple_can_be_read(case: dict[str, Any]) -> None:
    """Damage: a served driver stores other keys than it was given."""
    flat = [compact(value) if isinstance(value, dict | list) else value for value in case["json"]]
    assert list(unpack(bytes.fromhex(case["hex"]))) == flat


@given(tables())
def test_a_table_is_packed_as_its_rows_are(columns: list[pa.Array]) -> None:
    """Damage: the fast way and FoundationDB's own disagree on a key, so a split or a connector loses its row."""
    rows = zip(*(listed(plain(column)) for column in columns), strict=True)
    expected = [pack([json.loads(bytes(v)) if isinstance(v, msgspec.Raw) else v for v in row]) for row in rows]
    assert packed(columns).to_pylist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | TEXT | st.booleans() | st.none(), min_size=1))
def test_what_was_packed_is_read_back(values: list[Any]) -> None:
    """Damage: keys change on their way through the wire."""
    assert list(unpack(pack(values))) == values


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.sampled_from([pa.int64()]))
def test_bytes_are_in_the_order_of_their_integers(values: list[int | None], kind: pa.DataType) -> None:
    """Damage: Loads of keys below the durable maximum are left out."""
    found = packed([pa.array(values, kind)]).to_pylist()
    assert sorted(found) == packed([pa.array(sorted(values, key=lambda v: (v is not None, v or 0)), kind)]).to_pylist()


@given(st.lists(st.none() | st.floats(), min_size=2))
def test_keys_that_are_not_distinct_have_one_form(values: list[float | None]) -> None:
    """Damage: the row of the key -0.0 stays for ever, because 0.0 was deleted."""
    found = keyed([pa.array(values, pa.float64())]).to_pylist()
    forms: dict[str, set[bytes]] = {}
    for value, data in zip(values, found, strict=True):
        forms.setdefault(canonical(value), set()).add(data)
    assert all(len(each) == 1 for each in forms.values())
    assert len(set(found)) == len(forms)


@given(st.binary(max_size=12))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    """Damage: a damaged key ends the process by an error that no caller expects."""
    try:
        unpack(data)
    except ValueError as error:
        assert "packed tuple" in str(error)  # noqa: PT017


def test_chunks_slices_and_dictionaries_are_packed_like_plain_columns() -> None:
    """Damage: the keys of a batch are those of another one."""
    whole = pa.array([None, "a", "b", "a"])
    chunked = pa.chunked_array([whole.slice(0, 1), whole.slice(1)])
    expected = packed([whole]).to_pylist()
    assert packed([chunked]).to_pylist() == expected
    assert packed([whole.dictionary_encode()]).to_pylist() == expected
    assert packed([whole.slice(1, 2)]).to_pylist() == expected[1:3]
    numbers = pa.array([5, None, 2**40, -3])
    assert packed([numbers.slice(1, 3)]).to_pylist() == packed([numbers]).to_pylist()[1:]


def test_small_decimals_have_all_their_digits() -> None:
    """Damage: one key is written in two forms, 1E-7 and 0.0000001."""
    assert packed([pa.array([Decimal("0.0000001")], pa.decimal128(10, 7))])[0].as_py() == pack(["0.0000001"])


def test_no_c_library_of_foundationdb_is_loaded() -> None:
    """Damage: Strandline starts only where FoundationDB's client is installed."""
    check = "import sys, strandline.materialize.wire.tuples; sys.exit('fdb.impl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
