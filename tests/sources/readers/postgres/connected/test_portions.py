"""Rows that a server sends one by one are handed on in portions of few bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.sources.readers.postgres.psycopg_server import portions

SIZES = st.lists(st.integers(0, 12), max_size=30)


@pytest.mark.property
@given(SIZES, st.integers(1, 6), st.integers(0, 20))
def test_each_row_comes_once_in_its_order_within_both_bounds(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    """Damage: a change is lost or comes twice, or what is handed on at once has no bound."""
    rows = [bytes([n]) * size for n, size in enumerate(sizes)]
    found = list(portions(rows, rows_max=rows_max, bytes_max=bytes_max))
    assert [row for portion in found for row in portion] == rows
    assert all(0 < len(portion) <= rows_max for portion in found)
    assert all(len(portion) == 1 or sum(map(len, portion)) <= bytes_max for portion in found)


def test_large_rows_are_taken_as_they_are_asked_for() -> None:
    """Damage: 5 000 rows of a megabyte are in memory at once, because they are not many."""
    asked = handed = most = 0

    def sent() -> Iterator[bytes]:
        nonlocal asked, most
        for _ in range(1_000):
            asked += 1
            most = max(most, asked - handed)
            yield bytes(1_000)

    for portion in portions(sent(), bytes_max=4_000):
        handed += len(portion)
    assert (asked, handed) == (1_000, 1_000)
    assert most <= 4 + 1, "a portion, and the row that no longer fits into it"
