"""The core of an environment without Spark: taking a location and releasing it, when stores and endpoints fail."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.client import Environment, Transaction
from strandline.client.access import Access
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.controller import core as core_module
from strandline.controller import planning
from strandline.controller.assembly import Assembly
from strandline.controller.core import Core
from strandline.controller.defining import definitions, sources
from strandline.controller.health import MERGES, PROBLEMS, Published
from strandline.controller.language.statements import CreateMaterialization, CreateSource, CreateTable, CreateView, Drop
from strandline.controller.location.catalog import KEY, CatalogStore, Holder
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Source, Table
from strandline.errors import (
    AsOfError,
    ConfigError,
    CorruptionError,
    DefinitionError,
    Indeterminate,
    InvalidUsage,
    Position,
    StoreError,
    Unavailable,
)
from strandline.materialize.schedule import Pace, Schedule
from strandline.materialize.splits import Splits
from strandline.persist.handles.register import Register
from strandline.persist.together.transactions import SHARD
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import AT_ONCE, Outcome, UnreliableConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import ListAnalyst, list_assembly
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring.loop import LoopThread

SETTINGS = (Config(), Config(reentrant=False))
NEVER, ALWAYS, LATER = range(0), range(10_000), range(1, 10_000)


class Place:
    """A location in memory; ``fails``: which of its changes have which outcome, other than being done."""

    def __init__(self) -> None:
        self.clock = HandClock(1_000)
        self.consensus, self.blob = MemoryConsensus(), MemoryBlob()
        self.closed = 0
        self.well()

    def well(self) -> None:
        """From now on everything is done."""
        self.ill(NEVER, Outcome.DONE)

    def ill(self, which: range, outcome: Outcome) -> None:
        """From now on those changes meet ``outcome``, counted from here."""
        self.which, self.outcome, self.changes = which, outcome, -1

    def _choose(self, label: str, n: int) -> int:
        self.changes += "compare_and_set" in label
        return AT_ONCE.index(self.outcome) if "compare_and_set" in label and self.changes in self.which else 0

    def assembly(self) -> Assembly:
        """What an environment in this process would be given; only an engine for SQL is missing."""
        opened = ExitStack()
        opened.callback(self._close)
        return list_assembly(
            self.clock,
            CountingIds(f"at-{self.clock.now}"),
            self.blob,
            UnreliableConsensus(self.consensus, self._choose),
            opened=opened,
        )

    def _close(self) -> None:
        self.closed += 1

    def asking(self, mode: Mode) -> Environment:
        """Open it as a program does."""
        assembly, loop = self.assembly(), LoopThread()
        return Environment(Access(loop.run(Core.open(assembly, Config(), mode)), assembly, loop))

    def open(self, config: Config = SETTINGS[0]) -> Core:
        """Open it for writing."""
        self.clock.now += 1
        return run_sync(Core.open(self.assembly(), config, Mode.FULL))

    @property
    def holder(self) -> Holder | None:
        """The present holder."""
        catalogs = CatalogStore(Register(KEY, self.clock, CountingIds("look"), self.consensus))
        return run_sync(catalogs.read()).holder


def define(core: Core, name: str) -> str:
    """Create a table and return its shard."""
    table = Table(name, (("k", "string"),), core.assembly.ids.fresh("s"))
    run_sync(definitions.add(core, table))
    return table.shard


class Away:
    """A register that no call reaches."""

    async def update(self, change: object) -> None:
        """Fail."""
        raise Unavailable("not now")


class Stuck:
    """A task whose endpoint does not let it end."""

    closed = 0

    async def halt(self) -> None:
        """Nothing goes on."""

    async def close(self) -> None:
        """Fail."""
        self.closed += 1
        raise Unavailable("the endpoint is gone")


@pytest.mark.parametrize("config", SETTINGS)
@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.LOST])
def test_what_failed_to_open_lets_go_of_the_location(config: Config, outcome: Outcome) -> None:
    """Damage: a store that hiccups while an environment opens locks everybody out, or calls for an operator."""
    place = Place()
    place.ill(range(1, 65), outcome)  # the claim is in; what comes then has no attempts left
    with pytest.raises((StoreError, Unavailable)):
        place.open(config)
    assert place.holder is None
    run_sync(place.open(config).close())


@pytest.mark.parametrize("config", SETTINGS)
def test_a_claim_that_landed_unreported_is_released_too(config: Config) -> None:
    """Damage: no process holds the location, and none may take it."""
    place = Place()
    run_sync(place.open(config).close())
    place.ill(range(64), Outcome.DONE_UNREPORTED)
    with pytest.raises(Indeterminate):
        place.open(config)
    assert place.holder is None


@pytest.mark.parametrize("config", SETTINGS)
def test_a_process_is_not_locked_out_by_itself_however_long_a_store_was_away(config: Config) -> None:
    """Damage: a process that failed to release the location cannot open it again until the process ends."""
    place = Place()
    place.ill(LATER, Outcome.REFUSED)
    with pytest.raises((StoreError, Unavailable)):
        place.open(config)
    place.well()
    assert place.holder is not None, "it could not release the location"
    core = place.open(config)
    place.ill(ALWAYS, Outcome.REFUSED)
    with pytest.raises((StoreError, Unavailable)):
        run_sync(core.close())
    place.well()
    assert place.holder is not None
    run_sync(place.open(config).close())
    assert place.holder is None


def test_an_interrupt_while_it_opens_lets_go_of_the_location(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: Ctrl-C in a notebook while an environment opens locks the notebook out until its kernel is restarted."""
    place, loop, waits = Place(), LoopThread(), threading.Event()
    assembly = place.assembly()

    async def hangs(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(core_module, "open_transactions", hangs)
    asyncio.run_coroutine_threadsafe(Core.open(assembly, Config(), Mode.FULL), loop._loop)  # no caller waits for it
    assert waits.wait(120)
    assert place.holder is not None
    loop.stop()
    assert place.holder is None


def test_an_environment_that_lives_in_this_process_is_refused_as_such() -> None:
    """Damage: two environments of one program write, or its author looks for a process that is this one."""
    place = Place()
    core = place.open()
    with pytest.raises(ConfigError, match="which is this process; close its environment"):
        place.open()
    with pytest.raises(ConfigError, match="which is this process"):
        place.open(Config(reentrant=False))
    run_sync(core.close())


def test_closing_goes_on_after_an_endpoint_that_fails() -> None:
    """Damage: the location stays held, and this process is refused by itself, because some file was gone."""
    place, tasks = Place(), {"one": Stuck(), "two": Stuck()}
    assembly, loop = place.assembly(), LoopThread()
    core = loop.run(Core.open(assembly, Config(), Mode.FULL))
    for name, task in tasks.items():
        core.require_writing().instance._deliveries.add(name, cast("Splits", task), Pace(Schedule(), HandClock()))
    env = Environment(Access(core, assembly, loop))
    with pytest.raises(Unavailable, match="endpoint is gone"):
        env.close()
    assert [task.closed for task in tasks.values()] == [1, 1]
    assert (place.holder, place.closed) == (None, 1)
    env.close()


@pytest.mark.parametrize("mode", [Mode.READ, Mode.INDEPENDENT])
def test_a_reader_sees_what_was_defined_dropped_and_taken_over_since(mode: Mode) -> None:
    """Damage: a dashboard shows a view that was dropped and made anew as it was, for ever, and calls it complete."""
    place = Place()
    core = place.open()
    define(core, "t")
    run_sync(core.tick())
    with place.asking(mode) as env:
        before = env.collection("t")
        held = env.status()
        run_sync(definitions.drop(core, Drop("table", "t", if_exists=False)))
        with pytest.raises(DefinitionError, match="there is no collection 't'"):
            env.collection("t")
        with pytest.raises(DefinitionError, match="there is no collection 't'"):
            before.snapshot()
        shard = define(core, "t")
        define(core, "u")
        run_sync(core.tick())
        assert env.inspect("t")["shard"] == shard
        assert env.collection("u").upper == env.collection("t").upper > before.upper
        run_sync(core.close())
        run_sync(place.open(Config(deployment="other")).close())
        after = env.status()
        assert sorted(after["collections"]) == ["t", "u"]
        assert (held["epoch"], after["epoch"], after["holder"]) == (1, 2, None)
        assert "'default'" in held["holder"]


@pytest.mark.parametrize("mode", [Mode.READ, Mode.INDEPENDENT])
def test_every_process_reads_the_problems_even_after_the_writer_has_ended(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: `status` shows that all is well, whatever is wrong, because it is another process that knows."""
    place = Place()
    core = place.open()
    shard = define(core, "t")
    core.problems["t"] = "its rows cannot be computed"
    run_sync(core.tick())
    with place.asking(mode) as env:
        assert env.status()["collections"]["t"]["problem"] == "its rows cannot be computed"
        hopeless = {shard: "part p is damaged", SHARD: "part q is damaged", "dropped": "part r is damaged"}
        monkeypatch.setattr(core.client, "problems", lambda: hopeless)
        run_sync(core.tick())
        run_sync(core.close())
        told = env.status()
        both = f"its rows cannot be computed; shard '{shard}': part p is damaged"
        assert told["collections"]["t"]["problem"] == both
        assert sorted(told["problems"]) == ["t", SHARD]
        again = place.open()
        run_sync(again.tick())
        assert env.status()["problems"] == {}
        run_sync(again.close())


def test_a_merge_that_failed_is_a_problem_until_one_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `status` shows for ever what was over after a second, and an operator learns to look away."""

    async def fails() -> None:
        raise Unavailable("the store is away")

    core = Place().open()
    with monkeypatch.context() as away:
        away.setattr(core.client, "merge", fails)
        run_sync(core.merge())
    assert core.problems[MERGES] == "the store is away"
    run_sync(core.merge())
    assert MERGES not in core.problems
    run_sync(core.close())


def test_a_store_that_takes_no_note_of_problems_stops_no_tick() -> None:
    """Damage: a report that only operators read stops the work."""
    place = Place()
    core = place.open()
    run_sync(core.tick())
    core.problems["t"] = "stuck"
    before, core.health.published_problems = core.health.published_problems, Published(Away(), str)
    time = run_sync(core.tick())
    core.health.published_problems = before
    assert run_sync(core.tick()) > time
    assert run_sync(Published(Register(PROBLEMS, place.clock, CountingIds("look"), place.consensus), str).read()) == {
        "t": "stuck"
    }
    run_sync(core.close())


def test_a_damaged_list_of_problems_stops_no_tick() -> None:
    """Damage: one bad object that is for people alone ends `strandline run`."""

    class Damaged:
        async def update(self, change: object) -> None:
            raise CorruptionError("problems: a byte is flipped")

    place = Place()
    core = place.open()
    core.problems["t"] = "stuck"
    core.health.published_problems = Published(Damaged(), str)
    time = run_sync(core.tick())
    assert run_sync(core.tick()) > time
    assert "a byte is flipped" in core.health.problems()["(status)"]
    run_sync(core.close())


def test_a_transaction_of_unknown_outcome_is_not_committed_again_without_a_token() -> None:
    """Damage: a commit that had landed is made a second time, and every row is there twice."""

    class Committing:
        @staticmethod
        def commit(changes: object, token: str | None) -> None:
            return None

    class Doubtful:
        core = Committing

        def computed(self, make: object, *, jobs: bool) -> int:
            raise Indeterminate("the answer was lost")

    access = cast("Access", Doubtful())
    for token, again in ((None, "outcome of this transaction is unknown"), ("mine", "the answer was lost")):
        transaction = Transaction(access, token)
        transaction._changes.append(cast("Any", SimpleNamespace(rows=())))
        with pytest.raises(Indeterminate):
            transaction.commit()
        with pytest.raises((InvalidUsage, Indeterminate), match=again):
            transaction.commit()


@pytest.mark.parametrize(("tick_s", "ticks"), [(60, 1), (3, 3), (0, 11), (-3600, 11)])
def test_waiting_for_views_ends_in_time_however_long_ticks_take(
    tick_s: int, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a caller that waits at most ten seconds waits for ten minutes, or for an hour after a clock was set."""
    place, done = Place(), []
    with place.asking(Mode.FULL) as env:

        def tick(*, wait: bool) -> None:
            assert not wait, "a caller with a limit waits for no upstream"
            place.clock.now += tick_s * 1000
            done.append(place.clock.now)

        monkeypatch.setattr(env, "tick", tick)
        monkeypatch.setattr(env, "_behind", lambda ts: ["v"])
        with pytest.raises(AsOfError, match="view 'v' is not past 5 yet"):
            env.sync(5, timeout=10)
        assert len(done) == ticks


class Connected:
    """Connectors of one upstream in memory."""

    def __init__(self) -> None:
        self.upstream = Upstream()

    def check(self, *_: object) -> None:
        """Accept everything."""

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    async def ask(self, *_: object) -> None:
        """The upstream is there."""

    def connections(self, _: str) -> dict[str, str]:
        """Return that no connector uses any."""
        return {}

    async def reader(self, *_: object) -> ListReader:
        """Return a reader as a fresh process opens it."""
        return ListReader(self.upstream)


def test_what_a_clock_ahead_has_bound_is_followed_at_once_under_a_right_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after an hour of a wrong clock a source takes nothing for an hour, and says nothing (found by a seed)."""
    place, connected = Place(), Connected()

    async def unsealed(*_: object) -> None:
        raise Unavailable("the store is away")

    async def opened() -> Core:
        assembly = replace(place.assembly(), connectors=cast("Any", connected), analyst=cast("Any", ListAnalyst()))
        return await Core.open(assembly, Config(), Mode.FULL)

    async def body() -> None:
        place.clock.now += 3_600_000
        ahead = await opened()
        columns = ", ".join(f"{column.name} {column.type}" for column in SCHEMA)
        await sources.create_source(ahead, CreateSource("u", columns, "list", {}))
        connected.upstream.produce("0", 1)
        with monkeypatch.context() as patched:
            patched.setattr(ahead.require_writing().transactions, "advance", unsealed)  # it is bound, and not sealed
            await ahead.tick()
        await ahead.close()
        place.clock.now -= 3_600_000
        right = await opened()
        connected.upstream.produce("0", 2)
        await right.tick()
        assert right.require_writing().instance._sources.open["u"].ingestion.status.durable_records == 1
        assert not right.health.problems()

    run_sync(body())


@pytest.mark.parametrize(
    "statement",
    [
        CreateSource("s", "a INT", "files", {"path": "/x", "Secret_Key": "canary-4711"}),
        CreateMaterialization("m", "duckdb", {"path": "/x", "password": "canary-4711"}, ()),
    ],
)
def test_a_secret_in_a_definition_is_refused_and_neither_shown_nor_stored(statement) -> None:
    """Damage: a password lies in the catalog, in every copy of it, and on the screen of every reader."""
    place = Place()
    core = place.open()
    create = {CreateSource: sources.create_source, CreateMaterialization: definitions.create_materialization}
    with pytest.raises(DefinitionError, match="is a secret: say where it is") as raised:
        run_sync(create[type(statement)](core, statement))
    assert "canary" not in str(raised.value)
    versions = [run_sync(place.consensus.scan(key, 0, 1000)) for key in run_sync(place.consensus.list_keys())]
    assert not [each for found in versions for each in found if b"canary" in each.data]
    run_sync(core.close())


def test_no_item_takes_the_name_under_which_a_sources_errors_are_read() -> None:
    """Damage: a table hides the records that a source could not decode, and nothing says that there are any."""
    core = Place().open()
    source = Source("Visits", (("k", "string"),), "shard", "files", {}, remap="remap", progress="progress")
    run_sync(core.catalogs.change(core.require_writing().epoch, lambda catalog: catalog.with_item(source)))
    with pytest.raises(DefinitionError, match="the errors of source 'Visits' are read under it"):
        run_sync(definitions.create_table(core, CreateTable("visits_ERRORS", "k STRING")))
    define(core, "Orders_Errors")
    with pytest.raises(DefinitionError, match="its errors are read as 'Orders_Errors', and there is a table"):
        run_sync(sources.create_source(core, CreateSource("orders", "k STRING", "files", {})))


def test_a_view_is_planned_once_when_it_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: every CREATE waits for Spark's analysis twice."""
    core, planned = Place().open(), list[str]()
    define(core, "t")

    def plan(sql: str, *given: Any, **named: Any) -> PlannedView:
        planned.append(sql)
        return plan_view(sql, *given, **named)

    monkeypatch.setattr(planning, "plan_view", plan)
    run_sync(definitions.create_view(core, CreateView("v", "SELECT t.k AS k FROM t", Position(1, 1))))
    assert planned == ["SELECT t.k AS k FROM t"]
    run_sync(core.tick())
    assert (core.health.problems(), len(planned)) == ({}, 1)
