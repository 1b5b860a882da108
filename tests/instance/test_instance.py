"""An instance runs what it is commanded, and writes nothing before it may."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from strandline.bench.environment import TICK_MS, Place, _change, _define, over_lists
from strandline.controller.asking.reads import snapshot
from strandline.controller.commanded import commands
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.config import Config, Mode
from strandline.errors import FencedError, SourceError
from strandline.frontier import Frontier, as_time
from strandline.instance.commands import Advance, Collection, Command, Output, RunDataflow, RunIndex, RunIngestion
from strandline.instance.indexes.index import Index
from strandline.instance.instance import Equipment, Instance
from strandline.instance.problems import Problems
from strandline.sources.question import PATIENT, Patience
from strandline.testing.lists.list_engine import listed
from strandline.testing.simulation.kernel import run_sync
from strandline.testing.upstreams.list_tables import SCHEMA, Change, Tables, TablesReader
from strandline.wiring.loop import RunningTask


def open_core(place: Place) -> Core:
    """An environment with a table, a source and three views, after one tick."""
    core = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    run_sync(_define(core))
    run_sync(_change(core, 0))
    run_sync(core.tick())
    return core


def commanded(core: Core) -> dict[str, Command]:
    """What the controller commands."""
    found = commands(core.catalog, core.require_writing().plans, core.config)
    return {name: command for name, (command, _) in found.items()}


def beside(core: Core, *, may_write: bool, newer: int = 0) -> Instance:
    """Another instance of the same environment, or of a ``newer`` epoch, which runs its dataflows."""
    have, writing = core.assembly, core.require_writing()
    equipment = Equipment(core.client, core.engine, have.connectors, have.drivers, have.together, PATIENT, have.lanes)
    instance = Instance(
        equipment, writing.epoch + newer, writing.transactions, Problems(core.assembly.clock), may_write=may_write
    )
    for name, command in commanded(core).items():
        if isinstance(command, RunDataflow):
            run_sync(instance.start(name, command))
    return instance


def upper(core: Core, name: str) -> Frontier:
    """How far a collection is."""
    return core.client.state_of(core.catalog.collection(name).shard).upper


def contents(core: Core, name: str, time: int) -> dict[str, int]:
    """What a collection holds at ``time``, row by row."""

    async def read() -> dict[str, int]:
        found: dict[str, int] = {}
        for row in listed(await snapshot(core, await core.readers.of(name), time, Hold())).rows:
            key = str({k: v for k, v in row.items() if not k.startswith("__")})
            found[key] = found.get(key, 0) + row["__diff"]
        return {key: count for key, count in found.items() if count}

    return run_sync(read())


def test_an_instance_that_may_not_write_yet_computes_and_appends_once_it_may() -> None:
    """Damage: a new version that warms up beside the old one writes into its views, or starts from nothing later."""
    place = over_lists()
    core = open_core(place)
    waiting = beside(core, may_write=False)
    begun = {name: upper(core, name) for name in ("totals", "matched", "highest")}
    for n in range(1, 4):
        place.clock.now += TICK_MS
        run_sync(_change(core, n))
        time = run_sync(core.ingest())
        report = run_sync(waiting.maintain(Frontier(time + 1)))
        assert {name: upper(core, name) for name in begun} == begun
        assert "may not write yet" in report.problem("totals")
    waiting.allow_writes()
    report = run_sync(waiting.maintain(Frontier(time + 1)))
    assert not report.failed
    assert not report.standing
    for name in begun:
        assert as_time(upper(core, name)) == time + 1
    told = {name: contents(core, name, time) for name in begun}
    run_sync(core.maintain())  # the instance that was there before finds nothing to correct
    for name in begun:
        assert contents(core, name, time) == told[name]
    assert told["totals"]


def test_a_view_without_a_history_waits_until_the_instance_may_write() -> None:
    """Damage: the documents promise that a new view is computed beside the old version, or a history begins twice."""
    place = over_lists()
    core = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    run_sync(_define(core))
    run_sync(_change(core, 0))
    time = run_sync(core.ingest())
    waiting = beside(core, may_write=False)
    report = run_sync(waiting.maintain(Frontier(time + 1)))
    assert "may not write yet" in report.problem("totals")
    assert all(run.sink.fresh and run.sink.desired is None for run in waiting._views.dataflows.runs)
    waiting.allow_writes()
    run_sync(waiting.maintain(Frontier(time + 1)))
    assert as_time(upper(core, "totals")) == time + 1


def test_an_instance_of_a_newer_epoch_fences_the_older_one_though_it_may_not_write() -> None:
    """Damage: an operator starts a new version to warm up, and does not expect that the old one stops there."""
    core = open_core(over_lists())
    beside(core, may_write=False, newer=1)
    run_sync(_change(core, 1))
    with pytest.raises(FencedError):
        run_sync(core.tick())


def test_a_read_only_instance_binds_and_delivers_nothing() -> None:
    """Damage: an instance that only warms up decides the times of a source's rows."""
    place = over_lists()
    core = open_core(place)
    have, writing = core.assembly, core.require_writing()
    equipment = Equipment(core.client, core.engine, have.connectors, have.drivers, have.together, PATIENT, have.lanes)
    waiting = Instance(equipment, writing.epoch, writing.transactions, Problems(core.assembly.clock), may_write=False)
    for name, command in commanded(core).items():
        run_sync(waiting.start(name, command))
    before = {name: upper(core, name) for name in ("items", "events")}
    run_sync(waiting.ingest(Advance(as_time(before["items"]) + 5)))
    run_sync(waiting.deliver())
    assert {name: upper(core, name) for name in before} == before


def test_nothing_goes_on_of_an_index_once_the_instance_is_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an environment that closes waits for an index that follows a large collection, or for one that hangs."""
    core = open_core(over_lists())
    have, items = core.assembly, core.catalog.collection("items")
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hangs(_: Index) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(Index, "bring", hangs)

    async def body() -> None:
        patience = Patience(partial(RunningTask, have.clock))
        equipment = Equipment(
            core.client, core.engine, have.connectors, have.drivers, have.together, patience, have.lanes
        )
        instance = Instance(equipment, core.require_writing().epoch, None, Problems(have.clock))
        await instance.start("i", RunIndex(Collection(items.name, items.shard, items.schema), ("grp",)))
        await begun.wait()
        await instance.halt()
        assert ended.is_set()
        assert instance.going_on() == {}
        await instance.close()

    asyncio.run(body())


def test_what_the_stage_that_is_furthest_behind_must_read_is_needed() -> None:
    """Damage: a shard that two views read is released as far as the faster one needs it, and the other goes wrong."""
    core = open_core(over_lists())
    instance, items = core.require_writing().instance, core.catalog.collection("items").shard
    readers = [run for run in instance._views.dataflows.runs if items in run.reads]
    assert len(readers) > 1
    assert instance.needed()[items] == readers[0].needed > Frontier(1)
    for behind in readers:
        desired, behind.sink.desired = behind.sink.desired, 2
        assert instance.needed()[items] == Frontier(1)
        behind.sink.desired = desired


def test_a_report_has_the_views_whose_shards_have_a_history() -> None:
    """Damage: a view that nothing was computed for yet is checked, or what was appended is not checked."""
    core = run_sync(Core.open(over_lists().assembly, Config(), Mode.FULL))
    run_sync(_define(core))
    instance = core.require_writing().instance
    assert instance.report().views == {}
    run_sync(_change(core, 0))
    run_sync(core.tick())
    views = instance.report().views
    assert views.keys() == {"totals", "matched", "highest"}
    assert {each.fingerprint for each in views.values()} == {
        instance._views.dataflows.runs_of(name)[-1].sink.fingerprint for name in views
    }
    assert views["highest"].rows > 0


def test_what_is_commanded_again_runs_on_and_what_is_commanded_otherwise_is_ended() -> None:
    """Damage: every tick opens every sink anew; or a view goes on with a plan that was found wrong."""
    core = open_core(over_lists())
    instance, wanted = core.require_writing().instance, commanded(core)
    runs = instance._views.dataflows.runs
    run_sync(instance.end(wanted))
    assert instance._views.dataflows.runs == runs
    totals = wanted["totals"]
    assert isinstance(totals, RunDataflow)
    run_sync(instance.end({**wanted, "totals": replace(totals, conf={"spark.sql.ansi.enabled": "false"})}))
    assert not instance.runs("totals")
    assert instance.runs("matched")
    run_sync(core.tick())
    assert instance.runs("totals")
    assert core.health.problems() == {}


class Bank:
    """`Connectors` of one upstream of tables."""

    def __init__(self) -> None:
        self.upstream = Tables()
        self.upstream.produce("log", Change("public.accounts", 1, 100), Change("public.owners", 1, 7))
        self.upstream.begin_log()
        self.refused = ""

    async def reader(self, *_: object) -> TablesReader:
        """Return a reader that fails for the table that is refused."""
        bank = self

        class Refusing(TablesReader):
            async def snapshot(self, table: str) -> Any:
                if table == bank.refused:
                    raise SourceError(f"relation {table} was dropped")
                return await super().snapshot(table)

        return Refusing(self.upstream)


def of_bank(core: Core, *tables: str) -> tuple[Instance, Bank]:
    """Return an instance that runs a source with some tables."""
    have, writing, bank = core.assembly, core.require_writing(), Bank()
    equipment = Equipment(core.client, core.engine, cast("Any", bank), have.drivers, have.together, PATIENT, have.lanes)
    instance = Instance(equipment, writing.epoch, writing.transactions, Problems(have.clock))
    run_sync(instance.start("bank", bank_of(*tables)))
    return instance, bank


def bank_of(*tables: str) -> RunIngestion:
    """Return the command of the source: each table feeds the collection of its name."""
    outputs = tuple(Output(Collection(t.title(), f"shard-{t}", SCHEMA), f"public.{t}") for t in tables)
    return RunIngestion("bank", outputs, "bank", {}, "bank-remap", "bank-progress")


def test_each_collection_that_a_source_feeds_is_known_by_its_name() -> None:
    """Damage: a table of a source cannot be seen in `status`, or its errors cannot be dismissed."""
    core = open_core(over_lists())
    instance, _ = of_bank(core, "accounts", "owners")
    time = as_time(upper(core, "items"))
    run_sync(instance.ingest(Advance(time)))
    report = instance.report()
    wanted = {"accounts": Frontier(time + 1), "owners": Frontier(time + 1), "bank": Frontier(time + 1)}
    assert report.frontiers == wanted
    assert {table: each.durable_records for table, each in report.sources["bank"].outputs.items()} == {
        "public.accounts": 1,
        "public.owners": 1,
    }
    counters = instance.counters()
    assert (counters["source/accounts/read_records"], counters["source/owners/reread_records"]) == (1, 0)
    assert [instance.runs(name) for name in ("bank", "accounts", "owners", "cards")] == [True, True, True, False]
    assert run_sync(instance.catch_up("owners")) == Frontier(time + 1)
    assert run_sync(instance.catch_up("cards")) is None
    assert instance.needed() == {"bank-remap": Frontier(time)}


def test_a_table_that_cannot_be_copied_is_a_problem_of_its_own_and_of_its_source() -> None:
    """Damage: one table that was dropped upstream stops all tables, or says nothing."""
    core = open_core(over_lists())
    instance, bank = of_bank(core, "accounts", "owners")
    bank.refused = "public.owners"
    time = as_time(upper(core, "items"))
    run_sync(instance.ingest(Advance(time)))
    assert instance.report().frontiers == {"accounts": Frontier(time + 1), "owners": Frontier(0), "bank": Frontier(0)}
    assert dict(instance._problems) == dict.fromkeys(("owners", "bank"), "relation public.owners was dropped")
    bank.refused = ""
    run_sync(instance.ingest(Advance(time + 1)))
    assert dict(instance._problems) == {}
    assert instance.report().frontiers["owners"] == Frontier(time + 2)


def test_a_source_that_gets_another_table_starts_anew_and_reads_nothing_again() -> None:
    """Damage: adding a table copies all the others once more."""
    core = open_core(over_lists())
    instance, bank = of_bank(core, "accounts")
    time = as_time(upper(core, "items"))
    run_sync(instance.ingest(Advance(time)))
    wanted = bank_of("accounts", "owners")
    run_sync(instance.end({"bank": wanted}))
    assert not instance.runs("bank")
    run_sync(instance.start("bank", wanted))
    run_sync(instance.ingest(Advance(time + 1)))
    assert instance.report().frontiers["owners"] == Frontier(time + 2)
    assert bank.upstream.delivered == {("public.accounts", "log", 0): 1, ("public.owners", "log", 0): 1}
