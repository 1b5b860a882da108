"""Exploring makes every run once, ends what comes to a state again, and keeps to the faults it is allowed."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.exploration import FAULT, LAND, Exploration


def test_every_run_is_made_where_no_two_states_are_alike() -> None:
    """Damage: an order in which something goes wrong is not among those that were tried."""
    seen = []

    def run(choose, arrived) -> None:
        taken = []
        for label in ("a", "b", "c"):
            arrived(tuple(taken))
            taken.append(choose(label, 2))
        seen.append(tuple(taken))

    found = Exploration(0, frozenset())
    found.explore(run)
    assert sorted(seen) == [(a, b, c) for a in range(2) for b in range(2) for c in range(2)]
    assert (found.runs, found.ends, len(found.states)) == (8, 8, 7)


def test_two_runs_that_come_to_one_state_go_on_once() -> None:
    """Damage: small worlds are too large to be searched."""
    ends = []

    def run(choose, arrived) -> None:
        total = 0
        for step in range(6):
            arrived((step, total))
            total += choose("add", 2)
        ends.append(total)

    found = Exploration(0, frozenset())
    found.explore(run)
    assert set(ends) == set(range(7))
    assert len(found.states) == sum(range(1, 7)), "step n has n + 1 totals"
    assert len(ends) < 2**6


def faults_met(faults_max: int, sites: frozenset[str]) -> set[tuple[int, int, int]]:
    """Return what runs over two sites and one landing met."""
    met = set()

    def run(choose, arrived) -> None:
        met.add((choose(FAULT + "one", 3), choose(FAULT + "two", 2), choose(LAND, 2)))

    Exploration(faults_max, sites).explore(run)
    return met


def test_no_run_meets_more_faults_than_it_may_nor_elsewhere() -> None:
    """Damage: the bounds that are reported are not those that were searched."""
    both = frozenset({"one", "two"})
    assert faults_met(0, both) == {(0, 0, land) for land in range(2)}
    assert {(a, b) for a, b, _ in faults_met(1, both)} == {(0, 0), (1, 0), (2, 0), (0, 1)}
    assert {(a, b) for a, b, _ in faults_met(2, both)} == {(a, b) for a in range(3) for b in range(2)}
    assert {(a, b) for a, b, _ in faults_met(2, frozenset({"two"}))} == {(0, 0), (0, 1)}


def test_what_a_run_raises_ends_the_search() -> None:
    """Damage: a broken law in one of many runs is not reported."""

    def run(choose, arrived) -> None:
        if choose("a", 3) == 2:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Exploration(0, frozenset()).explore(run)
