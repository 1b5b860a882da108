"""Choices come from a seed, a list, or every list there is."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidUsage
from strandline.testing.simulation.exploration import FAULT_RATES, Listed, Seeded, every_list


@given(choices=st.lists(st.integers()), bounds=st.lists(st.integers(min_value=1, max_value=9)))
def test_every_list_of_integers_is_a_legal_run(choices: list[int], bounds: list[int]) -> None:
    """Damage: a shrunk example fails by itself, and not by the bug."""
    choose = Listed(choices)
    assert all(0 <= choose("any", n) < n for n in bounds)


def test_faults_are_rare_and_other_choices_even() -> None:
    """Damage: nothing gets done under faults, or one actor is always first."""
    faults, others = Counter[int](), Counter[int]()
    for seed in range(400):
        choose = Seeded(random.Random(seed))
        for _ in range(50):
            faults[choose("fault:blob.set", 9)] += 1
            others[choose("next", 4)] += 1
    assert 0.7 < faults[0] / faults.total() < 0.95
    assert set(faults) == set(range(9))
    assert all(0.24 < others[value] / others.total() < 0.26 for value in range(4))


def test_every_seed_switches_its_own_faults_on() -> None:
    """Damage: all runs are alike, and a bug that needs one fault without another is not found."""
    profiles, quiet = set(), 0
    for seed in range(200):
        choose = Seeded(random.Random(seed))
        met = frozenset(choose("fault:blob.set", 9) for _ in range(2_000)) - {0}
        profiles.add(met)
        quiet += not met
    assert len(profiles) > 80
    assert quiet > 200 / len(FAULT_RATES) / 2, "some runs have no faults at all"


def test_every_list_is_used_once_even_if_later_choices_depend_on_earlier_ones() -> None:
    """Damage: the exhaustive search is not exhaustive."""

    def run(choose) -> tuple[int, ...]:
        first = choose("first", 3)
        return (first, *(choose("more", 2) for _ in range(first)))

    runs = [run(choose) for choose in every_list()]
    assert runs == [(0,), (1, 0), (1, 1), (2, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1)]


def test_a_run_that_is_no_function_of_its_choices_is_refused() -> None:
    """Damage: hidden state makes the search skip what it claims to have covered."""
    questions = iter(["a", "b", "c", "d"])
    with pytest.raises(InvalidUsage, match="choice 0 was 'a' of 2"):
        for choose in every_list():
            choose(next(questions), 2)
