"""Every history of small worlds keeps every law: orders, late effects, crashes, lost requests, all of them."""

from __future__ import annotations

import pytest

from worlds.campaign import ASKED_FOR
from worlds.processors import spread
from worlds.seats import Model, search
from worlds.small import MODELS, MODELS_LONG, SmallWorld, append, compact
from worlds.small_sink import FED, SINK_MODELS, SINK_MODELS_LONG
from worlds.small_source import SOURCE_MODELS, SOURCE_MODELS_LONG

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

MINUTES_MAX = 5


def hold(record_property, stage: str, models: tuple[Model, ...], least: int) -> None:
    """Search all models, the largest first, on all processors."""
    found = list(spread(search, models))
    for name, runs, ends, states, seconds in found:
        record_property(
            "FIGURE", f"{stage}.{name} states={states},runs={runs},ends={ends},cpu-s={seconds:.0f} all pass"
        )
    states, seconds = sum(each[3] for each in found), sum(each[4] for each in found)
    minutes = seconds / 60 / 2
    verdict = "pass" if states >= least else "miss"
    record_property("FIGURE", f"{stage} states={states} >={least} {verdict}")
    record_property("FIGURE", f"{stage}.minutes-on-2 {minutes:.1f} <={MINUTES_MAX} info")
    assert all(ends for _, _, ends, _, _ in found)
    assert verdict == "pass"


def test_every_history_of_the_smallest_worlds_keeps_every_law(record_property) -> None:
    """Damage: some order of few steps, with one or two faults among them, loses, repeats or tears what was appended."""
    hold(record_property, "simulation.small", MODELS, 6_000)


@pytest.mark.slow
def test_every_history_of_small_worlds_keeps_every_law(record_property) -> None:
    """Damage: the same, where more of them meet."""
    hold(record_property, "long.small", MODELS_LONG, 450_000)


def test_every_history_of_the_smallest_sinks_keeps_every_law(record_property) -> None:
    """Damage: a take-over, or an append that comes late, leaves a view wrong at some time, or standing still."""
    hold(record_property, "simulation.small-sink", SINK_MODELS, 2_500)


@pytest.mark.slow
def test_every_history_of_small_sinks_keeps_every_law(record_property) -> None:
    """Damage: the same, where more of them meet."""
    hold(record_property, "long.small-sink", SINK_MODELS_LONG, 20_000)


def test_every_history_of_the_smallest_sources_keeps_every_law(record_property) -> None:
    """Damage: upstream forgets a message that is not durable, or a message is there twice, or at two times."""
    hold(record_property, "simulation.small-source", SOURCE_MODELS, 5_000)


@pytest.mark.slow
def test_every_history_of_small_sources_keeps_every_law(record_property) -> None:
    """Damage: the same, where more of them meet."""
    hold(record_property, "long.small-source", SOURCE_MODELS_LONG, 10_000)


@pytest.mark.parametrize("model", [Model(SmallWorld, {"a": append, "c": compact}, 1, 1), FED], ids=str)
def test_a_state_is_the_same_whenever_it_is_come_to(model: Model) -> None:
    """Damage: the search compares addresses in memory: it repeats equal states, and leaves others out."""
    assert model.search().states == model.search().states
