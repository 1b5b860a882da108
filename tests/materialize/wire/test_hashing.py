"""The split hash of a key is that of Estuary Flow."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.materialize.protocol.task import WHOLE, KeyRange
from strandline.materialize.wire.tuples import key_hash, key_hashes, keyed, pack, within

FILE = json.loads((Path(__file__).parents[2] / "cases" / "key_hashes.json").read_text())
CASES = FILE["upstream_golden"] + FILE["computed_here"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hash"])
def test_the_known_keys_are_hashed_as_they_must(case: dict[str, Any]) -> None:
    """Damage: a connector fences or stores the rows of another split than ours."""
    assert pack(case["tuple"]).hex() == case["packed_hex"]
    assert f"{key_hash(bytes.fromhex(case['packed_hex'])):08x}" == case["hash"]


@given(st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text("ab\0é")), max_size=8))
def test_a_table_is_hashed_as_its_keys_are(rows: list[tuple[int | None, str | None]]) -> None:
    """Damage: the rows of a key are in two splits, or in none."""
    columns = [pa.array([n for n, _ in rows], pa.int64()), pa.array([t for _, t in rows], pa.string())]
    assert key_hashes(columns).tolist() == [key_hash(each) for each in keyed(columns).to_pylist()]


def test_zeros_and_nans_are_in_one_split() -> None:
    """Damage: a row of the key -0.0 is deleted in a split that never stored it."""
    nan = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    assert len(set(key_hashes([pa.array([0.0, -0.0])]).tolist())) == 1
    assert len(set(key_hashes([pa.array(nan)]).tolist())) == 1


@given(st.integers(1, 7), st.lists(st.integers(0, WHOLE.end)))
def test_splits_share_out_all_rows(splits: int, hashes: list[int]) -> None:
    """Damage: a row is in two splits or in none."""
    bounds = [WHOLE.end * n // splits for n in range(splits + 1)]
    ranges = [KeyRange(low + (n > 0), high) for n, (low, high) in enumerate(itertools.pairwise(bounds))]
    found = np.array(hashes, np.uint32)
    shares = sum((np.array(within(each, found).to_pylist(), int) for each in ranges), np.zeros(len(found), int))
    assert shares.tolist() == [1] * len(hashes)
