"""CREATE MATERIALIZATION … OPTIONS (every '…', within '…'), and how an endpoint is synced now.  Over lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest
from contents_of import contents

from strandline.bench.environment import ITEMS, VIEWS, Place, _change, over_lists
from strandline.client.environment import Environment
from strandline.controller.asking import status
from strandline.controller.asking.status import progress
from strandline.controller.core import Core
from strandline.controller.defining.altering import alter
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateTable, CreateView, parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import DefinitionError, FencedError, Position, Unavailable
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.simulation.kernel import run_sync

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class World:
    """An environment with a view, an endpoint, and a clock."""

    def __init__(self) -> None:
        self.endpoint = Endpoint()
        self.place: Place = over_lists()
        self.assembly = replace(self.place.assembly, drivers=lambda *_: MemoryDriver(self.endpoint, KeyValueSession))
        self.core = self.open(Mode.FULL)
        run_sync(create(self.core, CreateTable("items", ITEMS)))
        run_sync(create(self.core, CreateView("highest", VIEWS["highest"], Position(1, 1))))

    def open(self, mode: Mode, *, take_over: bool = False) -> Core:
        """Open the location."""
        return run_sync(Core.open(self.assembly, Config(take_over=take_over), mode))

    def make(self, options: str) -> None:
        """Create the materialization."""
        text = f"CREATE MATERIALIZATION Out INTO memory OPTIONS ({options}) AS highest KEY (grp)"
        run_sync(create(self.core, cast("Any", parse(text))))

    def change(self, n: int, minutes: float = 1) -> None:
        """Change what the view reads, and tick, after some minutes."""
        self.place.clock.now += round(minutes * MINUTE_MS)
        run_sync(_change(self.core, n))
        run_sync(self.core.tick())

    def same(self, view: str = "highest") -> bool:
        """Return whether the endpoint has what a view has."""
        stored = [{n: v for n, v in row.items() if n not in {EXISTS, DELETE}} for row in self.endpoint.rows(view)]
        return Counter(map(str, stored)) == contents(self.core, view)

    def status(self, core: Core | None = None) -> dict[str, Any]:
        """Return what `status` says of the materialization."""
        found: dict[str, Any] = run_sync(status.status(core or self.core))["materializations"]["Out"]
        return found


@pytest.fixture
def world() -> World:
    """Return the world of this test."""
    return World()


def environment(core: Core, assembly: Any, ticks: Core | None = None) -> Environment:
    """Return an environment whose calls are made here; ``ticks``: a writer that ticks whenever this one waits."""

    class Access:
        def __init__(self) -> None:
            self.core, self.assembly = core, assembly

        def run(self, call: Any) -> Any:
            if ticks is not None and call.__qualname__.endswith("sleep"):
                run_sync(ticks.tick())
            run_sync(core.look())
            return run_sync(call)

    return Environment(cast("Any", Access()))


def test_an_endpoint_follows_as_often_as_it_says_and_status_says_until_when_it_waits(world: World) -> None:
    """Damage: an endpoint is brought on at each tick, or stands still and no one knows why."""
    world.make("every '10 minutes'")
    world.change(0)
    assert world.same(), "the first transaction waits for nothing"
    for n in range(1, 10):
        world.change(n)
        assert not world.same()
        found = world.status()
        assert found["problem"] is None
        assert found["notices"] == []
        assert found["waiting"].startswith("it waits for its schedule: its next transaction begins at ")
        assert run_sync(status.status(world.core))["problems"] == {}
        looked = progress(world.core)
        assert looked["complete"] == world.core.health.time, "what waits as it says keeps nothing from being complete"
    world.change(10)
    assert world.same()
    assert world.status()["waiting"] is None


def test_another_process_reads_until_when_an_endpoint_waits(world: World) -> None:
    """Damage: `strandline status` beside `strandline run` shows an endpoint that stands still, and not why."""
    world.make("every '10 minutes'")
    world.change(0)
    world.change(1)
    assert world.status(world.open(Mode.INDEPENDENT))["waiting"] == world.status()["waiting"] is not None


def test_ticks_are_left_out_while_an_endpoint_waits_and_not_once_it_is_due(world: World) -> None:
    """Damage: an idle environment writes at each interval; or an endpoint that is due is forgotten."""
    world.make("every '10 minutes'")
    world.change(0)
    world.change(1)
    run_sync(world.core.tick())
    assert run_sync(world.core.idle())
    world.place.clock.now += 10 * MINUTE_MS
    assert not run_sync(world.core.idle())
    run_sync(world.core.tick())
    assert world.same()


def test_a_process_that_begins_keeps_the_schedule(world: World) -> None:
    """Damage: a process that dies again and again pushes each time."""
    world.make("every '10 minutes'")
    world.change(0)
    run_sync(world.core.close())
    world.core = world.open(Mode.FULL)
    world.change(1)
    assert not world.same()
    world.change(2, minutes=10)
    assert world.same()


def test_a_process_that_takes_over_keeps_the_schedule_of_one_that_went_on_until_then(world: World) -> None:
    """Damage: while one process succeeds another, a warehouse gets two transactions in one interval."""
    world.make("every '10 minutes'")
    world.change(0)
    world.change(1, minutes=5)
    before, world.core = world.core, world.open(Mode.FULL, take_over=True)
    world.place.clock.now += 6 * MINUTE_MS
    with pytest.raises(FencedError):
        run_sync(before.deliver())
    assert world.same(), "it learns that it has a successor once its transaction is there"
    world.change(2)
    assert not world.same()
    world.change(3, minutes=10)
    assert world.same()


def test_sync_now_brings_an_endpoint_there_and_its_schedule_counts_again_afterwards(world: World) -> None:
    """Damage: who needs what was written must wait for a schedule; or reads that it is there, and it is not."""
    world.make("every '10 minutes'")
    world.change(0)
    world.change(1)
    env = environment(world.core, world.assembly)
    position = env.sync_now("out")
    assert world.same()
    assert position == world.status()["position"]
    assert env.sync_now("out") >= position, "asked again it is there already, or comes there"
    world.change(2)
    assert not world.same()


def test_another_process_syncs_by_the_one_that_writes(world: World) -> None:
    """Damage: `strandline sync` beside `strandline run` waits for the schedule, too."""
    world.make("within '00:00-00:01 sun UTC'")
    world.change(0)
    assert not world.same(), "outside the window nothing is begun, the first transaction neither"
    other = world.open(Mode.INDEPENDENT)
    env = environment(other, world.assembly, ticks=world.core)
    env.sync_now("Out")
    assert world.same()
    env.sync_now("Out")  # nothing has changed since, and the recovery log need not show that it is there


def test_sync_now_gives_up_in_time_and_says_what_stands_in_the_way(world: World) -> None:
    """Damage: a script waits for ever."""
    world.make("every '10 minutes'")
    world.change(0)
    world.change(1)
    other = world.open(Mode.INDEPENDENT)
    with pytest.raises(Unavailable, match=r"the endpoint of 'out' has not come to \d+ within 5 s: is `str"):
        environment(other, world.assembly).sync_now("out", timeout=5)
    with pytest.raises(DefinitionError, match="there is no materialization 'uot'"):
        environment(other, world.assembly).sync_now("uot")


@pytest.mark.parametrize(
    ("schedule", "wait_ms"), [("every '10 minutes'", 10 * MINUTE_MS), ("within '12:00-13:00 UTC'", 14 * HOUR_MS)]
)
def test_an_added_view_waits_for_the_schedule(world: World, schedule: str, wait_ms: int) -> None:
    """Damage: each ALTER begins one transaction more than the schedule has, at any hour."""
    run_sync(create(world.core, CreateView("totals", VIEWS["totals"], Position(1, 1))))
    world.make(schedule)
    world.change(0)
    environment(world.core, world.assembly).sync_now("Out")
    run_sync(alter(world.core, cast("Any", parse("ALTER MATERIALIZATION Out ADD VIEW totals KEY (grp)"))))
    world.change(1)
    assert not world.same()
    assert not world.endpoint.rows("totals")
    assert world.status()["waiting"].startswith("it waits for its schedule")
    world.change(2, minutes=wait_ms / MINUTE_MS)
    assert world.same()
    assert world.same("totals")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("every 'soon'", "option 'every' is 'soon': 'soon' is no interval"),
        ("within '8-18'", "option 'within' is '8-18'"),
    ],
)
def test_what_is_no_schedule_is_refused(world: World, options: str, said: str) -> None:
    """Damage: a typing error is a schedule that no one wanted."""
    with pytest.raises(DefinitionError, match=said):
        world.make(options)
