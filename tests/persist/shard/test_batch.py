"""Batches state their counts, and refuse wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.shard.batch import (
    NOTHING,
    Batch,
    BlobPart,
    Digest,
    InlinePart,
    Staged,
    Window,
    narrowed,
    retimed,
)

lanes = st.integers(0, 2**64 - 1)
digests = st.builds(Digest, lanes, lanes)


@given(digests, digests, digests)
def test_digests_are_a_commutative_group(a, b, c):
    """Damage: the digest of a shard depends on how its rows were batched."""
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + NOTHING == a
    assert (a - b) + b == a
    assert a - a == NOTHING


@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (3, 2)])
def test_a_batch_spans_some_time(lower, upper):
    """Damage: an append that advances nothing looks like progress."""
    with pytest.raises(InvalidUsage, match="is empty"):
        Staged(Frontier(lower), Frontier(upper), (), 0, 0, NOTHING, plain=True)
    with pytest.raises(InvalidUsage, match="is empty"):
        Staged(EMPTY, EMPTY, (), 0, 0, NOTHING, plain=True)


def test_a_batch_has_as_many_rows_as_its_parts():
    """Damage: a part of one worker is silently missing."""
    with pytest.raises(InvalidUsage, match="2 updates cannot lie in parts of"):
        Staged(MINIMUM, EMPTY, (InlinePart(b"", 1),), 2, 2, NOTHING, plain=True)


def test_inline_bytes_are_those_of_inline_parts():
    """Damage: parts in Blob count against the state's budget."""
    parts = (InlinePart(b"123", 1), BlobPart("k", 999, 1, 0, ""), InlinePart(b"4567", 1))
    assert Batch(MINIMUM, EMPTY, MINIMUM, parts, 3, 3, NOTHING, plain=True).inline_bytes == 7


def staged(lower, upper, *parts, since=MINIMUM):
    """A staged batch of these parts."""
    rows = sum(part.rows for part in parts)
    return Staged(Frontier(lower), Frontier(upper), parts, rows, rows, NOTHING, plain=True, since=since)


def test_a_part_that_shows_less_than_it_holds_counts_for_less():
    """Damage: a batch that was cut cannot be appended; or a part that lost rows can."""
    part = InlinePart(b"", 3, Window(1, Frontier(2)))
    Staged(MINIMUM, EMPTY, (part,), 2, 2, NOTHING, plain=True)
    Staged(MINIMUM, EMPTY, (part, InlinePart(b"", 1)), 3, 3, NOTHING, plain=True)
    with pytest.raises(InvalidUsage, match="cannot lie in parts"):
        Staged(MINIMUM, EMPTY, (part,), 4, 4, NOTHING, plain=True)


def test_cutting_narrows_and_retiming_moves_on():
    """Damage: updates that were cut off return at a later time; or retimed updates are cut by their old times."""
    whole = staged(0, 9, InlinePart(b"", 1))
    assert [p.window for p in narrowed(whole, Frontier(2), Frontier(4))] == [Window(2, Frontier(4))]
    moved = retimed(whole, Frontier(4), Frontier(9))
    assert (moved.lower, moved.upper, moved.parts[0].window) == (Frontier(4), Frontier(9), Window(advance=4))
    with pytest.raises(InvalidUsage, match="cannot be cut"):
        narrowed(moved, Frontier(5), Frontier(6))
    with pytest.raises(InvalidUsage, match="cannot be cut"):
        narrowed(staged(4, 9, InlinePart(b"", 1), InlinePart(b"", 1, Window(advance=4))), Frontier(5), Frontier(6))
    assert retimed(whole, Frontier(0), Frontier(12)) == staged(0, 12, InlinePart(b"", 1))
