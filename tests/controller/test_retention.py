"""History ends: since follows each collection's policy, and whatever still reads the past keeps it readable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contents_of import contents

from strandline.algebra.nodes import Node
from strandline.bench.environment import ITEMS, TICK_MS, Place, _change, _define, over_lists
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.language.statements import CreateTable, Drop
from strandline.controller.location.config import Config, Mode, config_from
from strandline.controller.location.items import View
from strandline.controller.retention import NONE, TICKS_BETWEEN, Policy, kept_shards, view_limits, wanted_sinces
from strandline.errors import AsOfError, ConfigError, DefinitionError, Position, Unavailable
from strandline.frontier import EMPTY, Frontier
from strandline.testing.doubles import CountingIds
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.kernel import run_sync

HOURS = TICK_MS


def open_core(place: Place, keep_history: str = "4 hours") -> Core:
    """An environment with a table, a source and three views."""
    core = run_sync(Core.open(place.assembly, Config(keep_history=keep_history), Mode.FULL))
    if not core.catalog.items:
        run_sync(_define(core))
    return core


def go_on(core: Core, place: Place, ticks: int, first: int = 0) -> int:
    """Let an hour pass, change the table and tick, so often; return the number of the next change."""
    for n in range(first, first + ticks):
        place.clock.now += TICK_MS
        run_sync(_change(core, n))
        run_sync(core.tick())
    return first + ticks


def state(core: Core, name: str) -> Any:
    """The newest state of a collection's shard."""
    return core.client.state_of(core.catalog.collection(name).shard)


@pytest.mark.parametrize("name", ["items", "events", "totals", "matched", "highest"])
def test_since_follows_at_the_distance_of_the_policy(name: str) -> None:
    """Damage: every collection is kept with its whole past, and each tick is slower than the one before."""
    place = over_lists()
    core = open_core(place)
    go_on(core, place, 40)
    found = state(core, name)
    last = found.upper.at - 1
    assert last - 5 * HOURS <= found.since.at <= last - 4 * HOURS
    assert core.health.problems() == {}


def test_internal_stages_and_remaps_keep_no_history() -> None:
    """Damage: a past that no reader can ask for grows for ever."""
    place = over_lists()
    core = open_core(place)
    go_on(core, place, 40)
    source = core.catalog.collection("events")
    inner = {shard for item in core.catalog.items.values() if isinstance(item, View) for shard in item.stages.values()}
    assert inner
    for shard in (*inner, source.remap):
        found = core.client.state_of(shard)
        assert found.upper.at - 2 * HOURS <= found.since.at < found.upper.at


def test_what_a_step_reads_does_not_grow_with_the_ticks_before_it() -> None:
    """Damage: a view that has run for a month reads a month at every tick."""
    place = over_lists()
    core = open_core(place)
    done, reads = 0, []
    for _ in range(10):
        before = place.read()
        done = go_on(core, place, 20, done)
        reads.append(place.read() - before)
    assert reads[-1] <= 1.2 * reads[3]


def test_a_view_that_was_idle_when_its_process_ended_goes_on() -> None:
    """Damage: the next process goes on from where the last one read to; is that let go of, the view stands for ever."""
    place = over_lists()
    core = open_core(place, keep_history="0")
    done = go_on(core, place, 2)
    for _ in range(4):
        place.clock.now += TICK_MS
        run_sync(core.tick())
    run_sync(core.close())
    core = open_core(replace(place, assembly=replace(place.assembly, ids=CountingIds("again"))), keep_history="0")
    go_on(core, place, 2, done)
    assert not {"totals", "highest"} & core.health.problems().keys()


def test_a_past_that_is_released_is_refused_with_since_and_policy() -> None:
    """Damage: a reader's error says that a time is gone, and not why, nor what is left."""
    place = over_lists()
    core = open_core(place)
    go_on(core, place, 40)
    since = state(core, "totals").since
    contents(core, "totals", since.at)
    with pytest.raises(AsOfError) as told:
        contents(core, "totals", since.at - 1)
    assert f"history of 'totals' is kept for 4 hours; since is {since}" in str(told.value)


def test_a_collection_has_a_policy_of_its_own() -> None:
    """Damage: one collection that must be kept for a year makes all of them be kept."""
    place = over_lists()
    core = open_core(place)
    run_sync(definitions.create_table(core, CreateTable("short", "k INT", keep_history="0")))
    run_sync(definitions.create_table(core, CreateTable("long", "k INT", keep_history="2 days")))
    go_on(core, place, 40)
    short, long = state(core, "short"), state(core, "long")
    assert short.since.at >= short.upper.at - 2 * HOURS
    assert long.since.at < long.upper.at - 48 * HOURS
    run_sync(core.close())
    reopened = open_core(replace(place, assembly=replace(place.assembly, ids=CountingIds("again"))))
    assert [reopened.readers.kept(reopened.catalog.collection(n)) for n in ("short", "long", "items")] == [
        "0",
        "2 days",
        "4 hours",
    ]


def test_an_interval_that_is_none_is_refused_before_anything_is_made() -> None:
    """Damage: a misspelt policy is found out when history is gone."""
    place = over_lists()
    core = open_core(place)
    with pytest.raises(DefinitionError, match="KEEP HISTORY FOR: 'a while' is no interval"):
        run_sync(definitions.create_table(core, CreateTable("t", "k INT", keep_history="a while")))
    assert core.catalog.find("t") is None
    with pytest.raises(ConfigError, match="keep_history: 'a while' is no interval"):
        config_from({"keep_history": "a while"})


def test_a_policy_that_a_project_changes_holds_for_what_is_there() -> None:
    """Damage: the file says ten days, the table keeps four hours, and the difference shows when the past is needed."""
    place = over_lists()
    core = open_core(place)

    def apply_with(policy: str | None) -> None:
        table = CreateTable("k", "k INT", keep_history=policy, keep_history_at=Position(3, 9))
        project = Project(Path(), "memory://", None, {}, 1_000, {}, (Defined("tables/k.sql", table),))
        run_sync(apply(core, project))

    for policy in ("1 hour", "10 days", None):
        apply_with(policy)
        item = core.catalog.collection("k")
        assert (item.keep_history, core.readers.kept(item)) == (policy, policy or "4 hours")
    with pytest.raises(DefinitionError, match=r"tables/k.sql: KEEP HISTORY FOR: 'x' is no .*\(at line 3, column 9\)"):
        apply_with("x")


class Failing(ListEngine):
    """Does not answer while a plan is to be evaluated."""

    down = False
    read_updates = 0

    async def evaluate(self, node: Node, frames: Any, *, origin: int = 0) -> Any:
        if self.down:
            raise Unavailable("the engine is away")
        return await super().evaluate(node, frames, origin=origin)


def test_a_view_that_stands_still_goes_on_from_where_it_stood_however_long_that_was() -> None:
    """Damage: its inputs release what it has not read yet, and it goes on with wrong rows, or never."""
    well, ill = over_lists(), over_lists()
    engine = Failing(ill.assembly.blob)
    ill = replace(ill, assembly=replace(ill.assembly, engine=engine))
    cores = [open_core(place, "0") for place in (well, ill)]
    for core, place in zip(cores, (well, ill), strict=True):
        go_on(core, place, 40)
    engine.down = True
    for core, place in zip(cores, (well, ill), strict=True):
        go_on(core, place, 60, 40)
    assert "matched" in cores[1].health.problems()
    stood = state(cores[1], "matched").upper
    assert state(cores[1], "items").since < stood < state(cores[1], "items").upper
    engine.down = False
    for core, place in zip(cores, (well, ill), strict=True):
        go_on(core, place, 20, 100)
    assert cores[1].health.problems() == {}
    for name in ("totals", "matched", "highest"):
        assert contents(cores[1], name) == contents(cores[0], name)
    assert state(cores[1], "items").since > stood, "what it no longer needs is released"


def test_a_successor_takes_the_holds_over_and_since_goes_on() -> None:
    """Damage: after the first restart history never ends again."""
    place = over_lists()
    core = open_core(place)
    done = go_on(core, place, 30)
    run_sync(core.close())
    successor = open_core(replace(place, assembly=replace(place.assembly, ids=CountingIds("second"))))
    before = state(successor, "totals").since
    go_on(successor, place, 30, done)
    assert state(successor, "totals").since.at >= before.at + 25 * HOURS


def test_a_query_that_was_answered_holds_no_past() -> None:
    """Damage: one query in the life of a process keeps all history from then on."""
    place = over_lists()
    core = open_core(place, "0")
    done = go_on(core, place, 20)
    run_sync(core.readers.holding("totals"))
    done = go_on(core, place, 20, done)
    run_sync(core.readers.beat())
    go_on(core, place, 5, done)
    found = state(core, "totals")
    assert found.since.at >= found.upper.at - 7 * HOURS


def test_holds_are_not_moved_at_every_tick() -> None:
    """Damage: an idle environment writes each of its shards at every tick."""
    place = over_lists()
    core = open_core(place, "1 hour")
    versions = {}
    for n in range(4 * TICKS_BETWEEN):
        place.clock.now += 1_000
        run_sync(core.tick())
        versions[n] = core.client.state_of(core.catalog.collection("items").shard).criticals["history"].since
    assert len(set(versions.values())) <= 2


def test_what_was_dropped_is_held_no_more() -> None:
    """Damage: the release of history fails at every tick once anything was dropped."""
    place = over_lists()
    core = open_core(place, "0")
    done = go_on(core, place, 20)
    run_sync(definitions.drop(core, Drop("materialized view", "matched", if_exists=False)))
    go_on(core, place, 20, done)
    assert core.health.problems() == {}


def view(name: str, imports: tuple[str, ...], stages: dict[str, str]) -> View:
    """A view of the catalog."""
    return View(name, (("k", "int"),), f"{name}-shard", "SELECT 1", imports, stages, {})


def test_a_view_that_cannot_be_opened_holds_all_that_it_reads() -> None:
    """Damage: a view that a new version cannot plan loses what it would go on from when the next version can."""
    core = open_core(over_lists())
    items = core.catalog.collection("items")
    broken = view("broken", ("items",), {"inner": "inner-shard"})
    uppers = {items.shard: Frontier(100), "broken-shard": Frontier(50), "inner-shard": Frontier(70)}

    def wanted(uppers: dict[str, Frontier]) -> dict[str, Frontier]:
        limits = view_limits([broken], core.catalog, uppers.get)
        return wanted_sinces([items, broken], {}, uppers.get, limits, 1_000)

    assert wanted(uppers) == {items.shard: Frontier(49), "broken-shard": Frontier(49), "inner-shard": Frontier(49)}
    del uppers["inner-shard"]
    assert wanted(uppers)[items.shard] == Frontier(0), "how far it came is not known"


def test_a_closed_shard_is_left_alone_and_a_policy_never_asks_for_a_time_before_the_first() -> None:
    """Damage: an environment that was just made, or an item that is being dropped, ends the tick."""
    core = open_core(over_lists())
    items, events = core.catalog.collection("items"), core.catalog.collection("events")
    policies = {items.shard: Policy("1 hour", 3_600_000), events.shard: NONE}
    uppers = {items.shard: Frontier(7), events.shard: EMPTY, events.remap: Frontier(9)}
    assert wanted_sinces([items, events], policies, uppers.get, [], 1_000) == {items.shard: Frontier(0)}
    assert events.progress not in kept_shards(events)


def test_catalogs_of_before_have_the_environments_policy() -> None:
    """Damage: an environment cannot open what its last version made."""
    core = open_core(over_lists())
    for item in core.catalog.items.values():
        known = msgspec.to_builtins(item)
        del known["keep_history"]
        assert msgspec.convert(known, type(item)).keep_history is None
        assert core.readers.kept(item) == "4 hours"


def test_a_project_changes_how_long_history_is_kept_in_place(tmp_path: Path) -> None:
    """Damage: to keep an hour more of a table's history it must be dropped, with all of it."""
    core = open_core(over_lists())
    (tmp_path / "tables").mkdir()
    (tmp_path / "strandline.yml").write_text("location: data")
    shard = core.catalog.collection("items").shard
    for clause, kept in ((" KEEP HISTORY FOR '2 days'", "2 days"), ("", "4 hours")):
        (tmp_path / "tables" / "items.sql").write_text(f"CREATE TABLE items ({ITEMS}){clause}")
        assert run_sync(apply(core, load(tmp_path))).created == ()
        assert run_sync(core.readers.of("items")).kept == kept
    assert core.catalog.collection("items").shard == shard
