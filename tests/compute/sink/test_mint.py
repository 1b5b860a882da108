"""Mint: lowers strictly increase, uppers never decrease, and a description begins where the shard ends (law K1)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.compute.sink.mint import mint
from strandline.frontier.antichain import EMPTY, Frontier

FRONTIERS = st.one_of(st.integers(0, 8).map(Frontier), st.just(EMPTY))


@given(st.lists(st.tuples(FRONTIERS, FRONTIERS, st.booleans()), max_size=12))
def test_minted_lowers_increase_and_uppers_never_decrease(turns: list[tuple[Frontier, Frontier, bool]]) -> None:
    """Damage: two descriptions are valid at once, and one batch is appended as another."""
    desired = shard = Frontier(0)
    last = None
    uppers = []
    for wanted, foreign, appended in turns:
        desired = max(desired, wanted)
        shard = max(shard, foreign)
        description = mint(allowed=True, desired=desired, shard=shard, last_lower=last)
        if description is None:
            continue
        assert description.lower == shard.at
        assert last is None or description.lower > last
        last = description.lower
        uppers.append(description.upper)
        if appended:
            shard = description.upper
    assert all(earlier <= later for earlier, later in pairwise(uppers))


@given(FRONTIERS, FRONTIERS)
def test_a_sink_that_may_not_write_mints_nothing(desired: Frontier, shard: Frontier) -> None:
    """Damage: a read-only instance writes (law K4)."""
    assert mint(allowed=False, desired=desired, shard=shard, last_lower=None) is None
