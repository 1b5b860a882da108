"""The ledger: the live records of the transactions shard, however they were compacted; and when tokens expire."""

from __future__ import annotations

import random

import pytest

from strandline.frontier import EMPTY, Frontier
from strandline.persist.handles.records import Record
from strandline.persist.shard.batch import Digest, InlinePart, Staged
from strandline.persist.together.transactions import (
    TOKEN_LIFE_MS,
    Committed,
    Ledger,
    expires,
    shard_record,
    token_record,
    write_record,
)


def staged(time, data=b"rows"):
    """A batch of one time."""
    return Staged(Frontier(time), Frontier(time + 1), (InlinePart(data, 1),), 1, 1, Digest(1, 1), plain=True)


HISTORY = [
    Record(shard_record("x", "a int"), 0, 1),
    Record(shard_record("y", "b int"), 1, 1),
    Record(token_record("one", 5), 5, 1),
    Record(write_record("x", 5, 0, staged(5)), 5, 1),
    Record(write_record("x", 5, 1, staged(5)), 5, 1),
    Record(write_record("x", 5, 0, staged(5)), 8, -1),
    Record(shard_record("y", "b int"), 9, -1),
    Record(shard_record("y", "c int"), 9, 1),
]


def test_the_ledger_has_the_registered_shards_the_commits_and_the_unapplied_writes():
    """Damage: an acknowledged write is never applied, or is applied to an unregistered shard."""
    known = Ledger().after(HISTORY, Frontier(10))
    left = write_record("x", 5, 1, staged(5))
    assert known.shards == {"x": "a int", "y": "c int"}
    assert known.tokens == {"one": 5}
    assert known.writes == {left: Committed("x", 5, staged(5), left)}


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_in_any_order_in_any_portions_and_with_times_advanced(seed):
    """Damage: after compaction a token is found at another time, or a write comes back."""
    rng = random.Random(seed)
    whole = Ledger().after(HISTORY, Frontier(10))
    cut = rng.randrange(len(HISTORY))
    first, rest = HISTORY[:cut], HISTORY[cut:]
    rng.shuffle(first)
    advanced = [Record(r.data, max(r.time, 9), r.diff) for r in rest]
    rng.shuffle(advanced)
    assert Ledger().after(first, Frontier(9)).after(advanced, Frontier(10)) == whole


def test_a_record_that_is_withdrawn_twice_is_a_bug():
    """Damage: tidying twice would hide the next write that looks the same."""
    twice = [Record(shard_record("x", "a int"), 1, -1)] * 2
    with pytest.raises(AssertionError, match="changed by -2"):
        Ledger().after(twice, Frontier(2))


def test_writes_come_in_the_order_of_their_times():
    """Damage: a shard's upper passes a committed time before its rows are in."""
    records = [Record(write_record(s, t, 0, staged(t)), t, 1) for t, s in [(9, "x"), (5, "y"), (300, "x"), (5, "x")]]
    known = Ledger().after(records, Frontier(301))
    assert [(w.time, w.shard) for w in known.in_order()] == [(5, "x"), (5, "y"), (9, "x"), (300, "x")]


def test_a_dated_token_may_be_forgotten_after_its_life_and_no_other_ever():
    """Damage: the shard grows for ever; or a token is forgotten that may still be asked for."""
    tokens = {"a@1000": 1_005, "b@2000": 2_005, "undated": 1_000, "odd@x": 1_000}
    records = [Record(token_record(t, at), at, 1) for t, at in tokens.items()]
    young, old = (Ledger().after(records, Frontier(1_000 + TOKEN_LIFE_MS + more)) for more in (-1, 0))
    assert young.expired() == []
    assert old.expired() == [token_record("a@1000", 1_005)]
    assert len(Ledger().after(records, EMPTY).expired()) == 2
    assert expires("²@²") == float("inf"), "a date is written with ASCII digits"
