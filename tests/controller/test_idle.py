"""An environment knows when a tick would find nothing new, so that ticks can be left out."""

from __future__ import annotations

from strandline.bench.environment import ITEMS, TICK_MS, VIEWS, _change, over_lists
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateSource, CreateTable, CreateView, parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import Position
from strandline.testing.simulation.kernel import run_sync


def test_an_environment_is_idle_where_a_tick_would_find_nothing_new() -> None:
    """Damage: an idle environment writes at each interval; or what comes to it waits for long."""
    place = over_lists()
    core = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    run_sync(create(core, CreateTable("items", ITEMS)))
    run_sync(create(core, CreateView("totals", VIEWS["totals"], Position(1, 1))))

    def idle() -> bool:
        return run_sync(core.idle())

    assert not idle(), "nothing is complete yet"
    run_sync(core.tick())
    before = core.client.metrics.counts()
    assert idle()
    assert core.client.metrics.counts() == before, "to ask writes nothing"
    run_sync(_change(core, 1))
    assert not idle(), "a table has changed"
    run_sync(core.tick())
    assert idle()
    run_sync(create(core, parse(f"CREATE MATERIALIZED VIEW hourly REFRESH EVERY '1 hour' AS {VIEWS['totals']}")))  # type: ignore[arg-type]
    assert not idle(), "a view is to be opened"
    place.clock.now += 1_000
    run_sync(core.tick())
    assert idle()
    place.clock.now += 2 * TICK_MS
    assert not idle(), "a refresh is due"
    run_sync(core.tick())
    core.problems.note("totals", "something")
    assert not idle(), "something is to be mended"


def test_an_environment_whose_upstream_has_more_is_not_idle() -> None:
    """Damage: a message waits for ticks that are left out."""
    place = over_lists()
    core = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    run_sync(create(core, CreateSource("events", "id INT, value BIGINT", "tide", {})))
    run_sync(core.tick())
    assert not run_sync(core.idle())
