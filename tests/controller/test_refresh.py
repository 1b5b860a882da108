"""Views with schedules in an environment: when they are there, what they show, what they keep others from."""

from __future__ import annotations

from typing import Any, Final

import pytest
from contents_of import contents

from strandline.bench.environment import ITEMS, START_MS, TICK_MS, VIEWS, Place, _change, over_lists
from strandline.controller.asking.status import status
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateSource, CreateTable, Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.errors import AsOfError, DefinitionError, Indeterminate
from strandline.frontier import EMPTY, Frontier, Refresh
from strandline.testing.simulation.kernel import run_sync

HOURS: Final = TICK_MS
TOTALS: Final = VIEWS["totals"]


class Site:
    """An environment over lists, with a table, a source and a view that follows; an hour passes at each tick."""

    def __init__(self, keep_history: str = "1000 hours") -> None:
        self.place: Place = over_lists()
        self.config = Config(keep_history=keep_history)
        self.core = run_sync(Core.open(self.place.assembly, self.config, Mode.FULL))
        self.n = 0
        self.reopened = False
        run_sync(create(self.core, CreateTable("items", ITEMS)))
        run_sync(create(self.core, CreateSource("events", "id INT, value BIGINT", "tide", {})))
        self.define("totals", "")

    def define(self, name: str, schedule: str, query: str = TOTALS) -> None:
        """CREATE MATERIALIZED VIEW."""
        run_sync(create(self.core, parse(f"CREATE MATERIALIZED VIEW {name} {schedule} AS {query}")))  # type: ignore[arg-type]

    def tick(self, ticks: int = 1) -> int:
        """Let an hour pass, change the table and tick, so often; return the last time."""
        for _ in range(ticks):
            self.place.clock.now += TICK_MS
            run_sync(_change(self.core, self.n))
            self.n += 1
            time = run_sync(self.core.tick())
        return time

    def reopen(self) -> None:
        """Go on in another process, as it were."""
        run_sync(self.core.close())
        self.reopened = True
        self.core = run_sync(Core.open(self.place.assembly, self.config, Mode.FULL))

    @property
    def problems(self) -> dict[str, str]:
        """What stands still; the source, which a new process has from its beginning, left out then."""
        return {k: v for k, v in self.core.health.problems().items() if not (self.reopened and k == "events")}

    def held(self, name: str, at: int | None = None) -> dict[str, int]:
        """What a collection holds at a time (default: the last one that can be asked for), row by row."""
        return contents(self.core, name, at)

    def upper(self, name: str) -> Frontier:
        """The upper of a collection."""
        upper: Frontier = self.core.client.state_of(self.core.catalog.collection(name).shard).upper
        return upper

    def schedule(self, name: str) -> Refresh:
        """The schedule of a view."""
        view = self.core.catalog.collection(name)
        assert isinstance(view, View)
        assert view.refresh is not None
        return view.refresh


def text(time: int) -> str:
    """Return a time as a statement writes it."""
    return str(Refresh(ats=(time,))).removeprefix("AT ")


@pytest.mark.parametrize("query", [TOTALS, VIEWS["highest"]], ids=["totals", "highest"])
def test_a_view_shows_what_a_following_one_showed_at_its_last_refresh(query: str) -> None:
    """Damage: a view changes between two refreshes, or shows another time's rows; or forgets its schedule."""
    site = Site()
    site.define("plain", "", query)
    site.tick(2)
    site.define("timed", "REFRESH EVERY '150 minutes'", query)
    first = site.schedule("timed").created
    assert first is not None
    for n in range(12):
        if n % 5 == 4:
            site.reopen()
        time = site.tick()
        assert site.problems == {}
        last = site.schedule("timed").before(time + 1)
        assert last is not None
        assert site.held("timed", time) == site.held("plain", last), n
        assert site.held("timed") == site.held("plain", last)
    assert site.held("timed", first) == site.held("plain", first)


def test_a_creation_of_unknown_outcome_that_happened_is_followed_by_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage: the view runs by the plan of before its creation, fails at each tick, and stays empty.

    Found by the world of the whole system (seed 1797200001225).
    """
    site = Site()
    site.define("timed", "REFRESH EVERY '150 minutes'")
    assert site.schedule("timed").created is None, "it was created at once, so this shows nothing"
    register = site.core.catalogs._register
    update = register.update

    async def unreported(change: Any) -> None:
        await update(change)
        raise Indeterminate("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(register, "update", unreported)
        while site.schedule("timed").created is None:
            site.tick()
    site.tick(4)
    assert site.problems == {}
    last = site.schedule("timed").before(site.tick() + 1)
    assert last is not None
    assert site.held("timed") == site.held("totals", last)


def test_a_view_cannot_be_read_before_its_first_refresh_and_what_reads_it_says_so() -> None:
    """Damage: a report for Monday is there on Sunday; or what reads it stands still without a word."""
    site = Site()
    site.tick()
    monday = START_MS + 5 * HOURS + 1_000
    site.define("report", f"REFRESH AT {text(monday)}, EVERY '100 hours' ALIGNED TO {text(monday)}")
    site.define("above", "", "SELECT grp, n FROM report WHERE n > 0")
    site.tick(2)
    with pytest.raises(AsOfError, match="'report' cannot be read before its first refresh"):
        site.held("report")
    assert set(site.problems) == {"above"}
    assert "it waits for 'report', which cannot be read before" in site.problems["above"]
    time = site.tick(4)
    assert site.held("report", time) == site.held("totals", monday)
    assert (len(site.held("above")), site.problems) == (len(site.held("report")), {})


def test_a_view_that_is_refreshed_once_is_closed_and_lets_go_of_what_it_read() -> None:
    """Damage: what never changes again is stepped at each tick, or keeps the past of its inputs for ever."""
    site = Site(keep_history="0 seconds")
    site.tick()
    site.define("once", "REFRESH AT CREATION")
    time = site.tick(40)
    was = site.held("once")
    assert (site.upper("once"), site.problems, sum(was.values())) == (EMPTY, {}, 1)
    items = site.core.client.state_of(site.core.catalog.collection("items").shard)
    assert items.since.at is not None
    assert items.since.at > time - 20 * HOURS
    site.reopen()
    site.tick()
    assert (site.held("once"), site.problems) == (was, {})
    run_sync(definitions.drop(site.core, Drop("materialized view", "once", if_exists=False)))
    assert site.core.catalog.find("once") is None


def test_a_view_over_what_was_not_read_yet_is_created_when_it_was() -> None:
    """Damage: the first refresh of a new project shows nothing, until the next one, a day later."""
    site = Site()
    site.define("wide", "REFRESH EVERY '24 hours'", "SELECT id, value FROM events")
    site.define("above", "REFRESH EVERY '24 hours'", "SELECT id FROM wide")
    assert site.schedule("wide").created is None
    assert "its schedule begins once events can be read" in site.problems["wide"]
    time = site.tick()
    assert site.problems == {}
    assert (site.schedule("wide").created, site.schedule("above").created) == (time, time)
    assert site.held("wide", time) == site.held("events", time) != {}
    assert len(site.held("above", time)) == len(site.held("wide", time))


def test_a_view_with_a_schedule_is_read_together_with_what_follows() -> None:
    """Damage: history is kept up to the next refresh, which is to come, so that now cannot be asked for."""
    site = Site(keep_history="0 seconds")
    site.tick()
    site.define("timed", "REFRESH EVERY '30 hours'")
    for _ in range(40):
        time = site.tick()
        last = site.schedule("timed").before(time + 1)
        assert last is not None
        site.held("timed", time)
    assert sum(site.held("timed", time).values()) == len(site.held("timed", time))
    found = run_sync(status(site.core))["collections"]["timed"]
    assert found["refresh"] == "EVERY '108000 s'"


@pytest.mark.parametrize(
    "schedule", ["REFRESH AT '2001-01-01'", "REFRESH AT '2001-01-01', AT '2002-01-01 10:00:00+02:00'"]
)
def test_a_schedule_that_is_past_is_refused(schedule: str) -> None:
    """Damage: a view is made that never holds anything."""
    site = Site()
    site.tick()
    with pytest.raises(DefinitionError, match=r"all of it is past.*line 1, column 32"):
        site.define("never", schedule)
    assert site.core.catalog.find("never") is None
