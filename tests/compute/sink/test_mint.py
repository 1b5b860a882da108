"""Mint: lowers strictly increase, uppers never decrease, and a description begins where the shard ends (law K1)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.compute.sink.actor import Description, Mint, mint
from strandline.frontier import EMPTY, Frontier

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


def minted(mint: Mint, desired: int, shard: int) -> Description | None:
    """Mint for a sink that may write."""
    return mint.next(allowed=True, desired=Frontier(desired), shard=Frontier(shard))


FATES = st.sampled_from(["appended", "lost", "landed", "nothing", "read-only", "begun anew"])


@given(st.lists(st.tuples(FATES, st.integers(0, 3)), max_size=12))
def test_law_k1_holds_whatever_becomes_of_descriptions(turns: list[tuple[str, int]]) -> None:
    """Damage: an assertion of the law stops a sink that did nothing wrong, and its view stands still for ever."""
    mint, shard, desired = Mint(), 0, 0
    made: list[Description] = []
    for fate, more in turns:
        desired = max(desired, shard) + more
        if fate == "read-only":
            assert mint.next(allowed=False, desired=Frontier(desired), shard=Frontier(shard)) is None
            continue
        found = minted(mint, desired, shard)
        assert (found is None) == (desired <= shard)
        if found is None:
            continue
        made.append(found)
        shard = {"appended": desired, "lost": shard + 1, "landed": desired}.get(fate, shard)
        if fate in {"appended", "lost"}:
            mint.settle(Frontier(shard))
        else:  # the append failed: it has happened, or not
            mint.give_up()
            desired = shard
        if fate == "begun anew":
            mint.begin_anew()
    assert all(one.lower <= other.lower for one, other in pairwise(made))


def test_a_lower_is_minted_once_after_it_was_appended_or_lost() -> None:
    """Damage: invariant 1: two batches begin at one time, and a slow append of the first is taken for the second."""
    mint = Mint()
    minted(mint, 5, 3)
    mint.settle(Frontier(4))
    assert minted(mint, 5, 3) is None
    assert minted(mint, 5, 4) == Description(4, Frontier(5))


def test_a_lower_is_minted_again_after_a_failure_if_the_shard_has_not_moved() -> None:
    """Damage: a store that was away once leaves a view that never moves again."""
    mint = Mint()
    minted(mint, 5, 3)
    mint.give_up()
    mint.give_up()
    assert minted(mint, 5, 3) == Description(3, Frontier(5))


@pytest.mark.parametrize("settled", [False, True])
def test_a_lower_is_never_before_one_that_was_minted(*, settled: bool) -> None:
    """Damage: invariant 1, across reopenings: a sink appends where it has appended, as an old state shows it."""
    mint = Mint()
    minted(mint, 5, 3)
    if settled:
        mint.settle(Frontier(5))
    mint.give_up()
    with pytest.raises(AssertionError, match="law K1 .lowers strictly increase"):
        minted(mint, 6, 2)


def test_a_description_is_settled_only_by_a_shard_that_has_moved() -> None:
    """Damage: invariant 1: an append is taken for lost that may still happen."""
    mint = Mint()
    minted(mint, 5, 3)
    with pytest.raises(AssertionError, match="law K1 .lowers strictly increase"):
        mint.settle(Frontier(3))


@pytest.mark.parametrize("allowed", [False, True])
def test_uppers_never_decrease(*, allowed: bool) -> None:
    """Damage: invariant 2: a sink that was overtaken, or may not write yet, forgets how far it has computed."""
    mint = Mint()
    if mint.next(allowed=allowed, desired=Frontier(5), shard=Frontier(3)) is not None:
        mint.settle(Frontier(4))
    with pytest.raises(AssertionError, match="law K1 .uppers never decrease"):
        minted(mint, 4, 4)


@pytest.mark.parametrize("reopened", [False, True])
def test_they_begin_anew_where_desired_does(*, reopened: bool) -> None:
    """Damage: a step that failed over a wide window is never made over a narrow one."""
    mint = Mint()
    minted(mint, 9, 3)
    if reopened:
        mint.give_up()
    else:
        mint.settle(Frontier(4))
        mint.begin_anew()
    assert minted(mint, 5, 4) == Description(4, Frontier(5))


def test_one_description_is_valid_at_a_time() -> None:
    """Damage: invariant 3: two batches of one sink are under way, and what one holds is owed by the other too."""
    mint = Mint()
    minted(mint, 5, 3)
    mint.begin_anew()  # an audit that was asked for meanwhile
    with pytest.raises(AssertionError, match="law K1 .one description"):
        minted(mint, 6, 4)
    mint.settle(Frontier(5))
    with pytest.raises(AssertionError, match="law K1 .one description"):
        mint.settle(Frontier(5))
    assert minted(mint, 6, 5) == Description(5, Frontier(6))
