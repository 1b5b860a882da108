"""Every history of small worlds keeps every law: orders, late effects, crashes, lost requests, all of them."""

from __future__ import annotations

import time

import pytest

from worlds.campaign import ASKED_FOR
from worlds.processors import spread
from worlds.seats import Model
from worlds.small import MODELS, MODELS_LONG, SmallWorld, append, compact

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

MINUTES_MAX = 5


def search(model: Model) -> tuple[str, int, int, int, float]:
    """Return the model's name, how many runs, ends and states there were, and how long it took."""
    begun = time.process_time()
    found = model.search()
    return str(model), found.runs, found.ends, len(found.states), time.process_time() - begun


def hold(record_property, stage: str, models: tuple[Model, ...], least: int) -> None:
    """Search all models, the largest first, on all processors."""
    found = list(spread(search, models))
    for name, runs, ends, states, seconds in found:
        record_property(
            "FIGURE", f"{stage}.small.{name} states={states},runs={runs},ends={ends},cpu-s={seconds:.0f} all pass"
        )
    states, seconds = sum(each[3] for each in found), sum(each[4] for each in found)
    minutes = seconds / 60 / 2
    verdict = "pass" if states >= least else "miss"
    record_property("FIGURE", f"{stage}.small states={states} >={least} {verdict}")
    record_property("FIGURE", f"{stage}.small.minutes-on-2 {minutes:.1f} <={MINUTES_MAX} told")
    assert all(ends for _, _, ends, _, _ in found)
    assert verdict == "pass"


def test_every_history_of_the_smallest_worlds_keeps_every_law(record_property) -> None:
    """Damage: some order of few steps, with one or two faults among them, loses, repeats or tears what was appended."""
    hold(record_property, "simulation", MODELS, 15_000)


@pytest.mark.slow
def test_every_history_of_small_worlds_keeps_every_law(record_property) -> None:
    """Damage: the same, where more of them meet."""
    hold(record_property, "long", MODELS_LONG, 450_000)


def test_a_state_is_the_same_whenever_it_is_come_to() -> None:
    """Damage: states are told apart by where objects lie in memory: equal ones are all searched, others left out."""
    model = Model(SmallWorld, {"a": append, "c": compact}, 1, 1)
    assert model.search().states == model.search().states
