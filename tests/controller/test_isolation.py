"""One item's failure is its own problem: the others go on, it says so, and it goes on when it can."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.algebra.schema import Schema
from strandline.controller import standing
from strandline.controller.core import CATALOG, Core
from strandline.controller.defining import definitions
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.catalog import KEY, Catalog, CatalogStore
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import BoundTable, Materialization, Source, Table, View
from strandline.errors import (
    ConfigError,
    CorruptionError,
    DefinitionError,
    Determinate,
    FencedError,
    Indeterminate,
    Unavailable,
    is_wait,
)
from strandline.frontier import Frontier
from strandline.instance.commands import RunIngestion
from strandline.persist.handles.register import Register
from strandline.persist.together.transactions import SHARD
from strandline.sources.ingest import Ingestion
from strandline.sources.status import Status
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.simulation.kernel import run_sync

FAILURES = [Determinate("No space left on device"), CorruptionError("part p is damaged"), KeyError("a bug of ours")]


@dataclass
class Failing:
    """An ingestion that raises the planted error, else does nothing."""

    error: Exception | None = None
    ticks: int = 0
    status: Status = field(default_factory=Status)
    tables = ("",)
    bound = upper = Frontier(0)

    async def tick(self, time: int, *, wait: bool = False) -> None:
        """See `Ingestion.tick`."""
        self.ticks += 1
        if self.error is not None:
            raise self.error

    async def catch_up(self, table: str) -> None:
        """See `Ingestion.catch_up`."""


@pytest.fixture
def core() -> Core:
    """An environment in memory with a table ``t``."""
    assembly = list_assembly(HandClock(1_000), CountingIds("p"), MemoryBlob(), MemoryConsensus(), drivers=Memory())
    core = run_sync(Core.open(assembly, Config(), Mode.FULL))
    run_sync(definitions.add(core, Table("t", (("k", "string"),), "table")))
    return core


async def away(*_: object) -> None:
    """Fail as a call does whose store is away."""
    raise Unavailable("the store does not answer")


def source(core: Core, name: str, ingestion: Failing) -> None:
    """Let ``ingestion`` take part in ticks."""
    command = RunIngestion(name, (), "", {}, "", "")
    core.require_writing().instance._sources.add(name, command, cast("Ingestion", ingestion))


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_one_source_that_fails_stops_no_other_and_no_table(core: Core, error: Exception) -> None:
    """Damage: a full disk under one source stops every view and endpoint, and `run` ends."""
    well = Failing()
    source(core, "bad", Failing(error))
    source(core, "good", well)
    time = run_sync(core.tick())
    assert well.ticks == 1
    assert core.client.state_of("table").upper > Frontier(time)
    assert list(core.health.problems()) == ["bad"]
    assert str(error) in core.health.problems()["bad"]


def test_a_source_that_recovers_has_no_problem_left(core: Core) -> None:
    """Damage: `status` shows a problem that is over, so that it is not believed when there is one."""
    bad = Failing(Determinate("full"))
    source(core, "bad", bad)
    run_sync(core.tick())
    bad.error = None
    run_sync(core.tick())
    assert core.health.problems() == {}


def test_fencing_ends_the_tick(core: Core) -> None:
    """Damage: a zombie takes its fencing for a problem of one item, and goes on."""
    source(core, "bad", Failing(FencedError("another environment has taken over")))
    with pytest.raises(FencedError):
        run_sync(core.tick())


def test_tables_that_cannot_be_sealed_say_so(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: tables stand still, and only what reads them shows that anything is wrong."""
    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing().transactions, "advance", away)
        run_sync(core.tick())
    problems = core.health.problems()
    assert problems[SHARD] == "the store does not answer"
    assert problems["t"] == "it waits for the transactions, which cannot be sealed: the store does not answer"
    run_sync(core.tick())
    assert core.health.problems() == {}


def test_an_engine_that_has_ended_ends_the_next_tick(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `run` tries every item at every tick for ever, though nothing in this process can bring one on."""
    asked = []

    async def ended() -> None:
        asked.append(True)
        raise ConfigError("Spark has ended")

    monkeypatch.setattr(core.engine, "require_running", ended)
    run_sync(core.tick())
    assert not asked, "each tick costs a call into Spark, though all is well"
    source(core, "bad", Failing(Unavailable("Spark does not answer")))
    run_sync(core.tick())
    with pytest.raises(ConfigError, match="Spark has ended"):
        run_sync(core.tick())


def succeeded(core: Core) -> None:
    """Let a newer environment take the catalog over, and define a table."""
    newer = CatalogStore(Register(KEY, core.assembly.clock, core.assembly.ids, core.assembly.consensus))
    epoch = run_sync(newer.succeed(lambda before: before.holder)).epoch
    run_sync(newer.change(epoch, lambda catalog: catalog.with_item(Table("u", (("k", "string"),), "other"))))


def test_an_environment_that_was_succeeded_and_can_seal_nothing_ends(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a zombie whose store fails ticks well, and knows nothing of what its successor defined.

    Found by the world of the whole system (seed 1796640097767).
    """
    succeeded(core)
    monkeypatch.setattr(core.require_writing().transactions, "advance", away)
    with pytest.raises(FencedError, match="generation 2"):
        run_sync(core.tick())


def test_an_environment_that_cannot_learn_whether_it_was_succeeded_says_so(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an item of the successor stands still, and nothing says that this environment may not know all items.

    Found by the world of the whole system (seed 1796640097767).
    """
    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing().transactions, "advance", away)
        patched.setattr(core.catalogs._register, "read", away)
        run_sync(core.tick())
    assert core.health.problems()[CATALOG] == "the store does not answer"
    run_sync(core.tick())
    assert core.health.problems() == {}


def test_an_item_that_could_not_be_opened_is_opened_by_a_later_tick(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a source that was unreachable when the environment started stays dead until the next restart."""
    opened = Failing()

    async def start(name: str, command: RunIngestion) -> None:
        if not ready:
            raise Unavailable("upstream does not answer")
        output = command.outputs[0].collection
        await core.client.writer(output.shard, core.require_writing().epoch, schema=output.schema.ddl)
        source(core, "late", opened)

    ready: list[bool] = []
    monkeypatch.setattr(core.require_writing().instance, "_start_ingestion", start)
    late = Source("late", (("k", "string"),), "late-shard", "files", {}, remap="late-remap", progress="late-progress")
    run_sync(definitions.add(core, late))
    run_sync(core.tick())
    assert core.health.problems() == {"late": "upstream does not answer"}
    ready.append(True)
    run_sync(core.tick())
    assert opened.ticks == 1
    assert "upstream" not in core.health.problems().get("late", "")


def test_what_stands_still_without_a_word_is_named(core: Core) -> None:
    """Damage: an item whose upper does not move looks healthy, or its problem is reported anew at each tick."""
    run_sync(core.client.writer("silent-shard", core.require_writing().epoch, schema="`k` string"))

    async def nothing(name: str, command: RunIngestion) -> None:
        source(core, "silent", Failing())

    core.require_writing().instance._start_ingestion = nothing  # type: ignore[method-assign]
    silent = Source("silent", (("k", "string"),), "silent-shard", "files", {}, remap="r", progress="p")
    run_sync(definitions.add(core, silent))
    for _ in range(2):
        run_sync(core.tick())
        said = core.health.problems()["silent"]
        assert said.startswith("it stands still, and nothing that is known stands in its way; report it as a bug")


def test_a_create_of_unknown_outcome_that_happened_is_opened_by_the_next_tick(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the item is in the catalog, does nothing, and no one says so until another environment opens it.

    Found by the world of the whole system.
    """
    with monkeypatch.context() as patched:
        patched.setattr(core.catalogs._register, "update", unreported(core.catalogs._register.update))
        with pytest.raises(Indeterminate):
            run_sync(definitions.add(core, Table("u", (("k", "string"),), "other")))
    time = run_sync(core.tick())
    assert "u" in core.require_writing().instance._tables
    assert core.client.state_of("other").upper > Frontier(time)
    assert core.health.problems() == {}


def test_a_create_that_happens_after_its_outcome_was_looked_up_is_refused(core: Core) -> None:
    """Damage: the item appears in the catalog when all think that it failed; it does nothing, and has no problem.

    Found by the world of the whole system (seed 2011788).
    """
    stores = core.assembly.consensus
    assert isinstance(stores, MemoryConsensus)
    under_way: list[CompareAndSet] = []

    async def hang(request: CompareAndSet) -> Committed | Mismatch:
        under_way.append(request)
        raise Indeterminate("no answer yet")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core.catalogs._register, "_consensus", SimpleNamespace(head=stores.head, compare_and_set=hang))
        with pytest.raises(Indeterminate):
            run_sync(definitions.add(core, Table("u", (("k", "string"),), "other")))
    run_sync(core.tick())
    assert all(isinstance(run_sync(stores.compare_and_set(request)), Mismatch) for request in under_way)
    assert "u" not in run_sync(core.catalogs.read()).items
    assert core.health.problems() == {}


def _closed(core: Core, shard: str) -> bool:
    reader = run_sync(core.client.reader(shard, Schema(()), "t"))
    return reader is not None and reader.state.tombstone


def test_a_drop_of_unknown_outcome_that_happened_is_finished_by_the_next_tick(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: what was dropped runs on, into a shard that no item has; its name cannot be used again.

    Found by the world of the whole system.
    """
    with monkeypatch.context() as patched:
        patched.setattr(core.catalogs._register, "update", unreported(core.catalogs._register.update))
        with pytest.raises(Indeterminate):
            run_sync(definitions.drop(core, Drop("table", "t", if_exists=False)))
    run_sync(core.tick())
    assert core.require_writing().instance._tables == {}
    assert core.catalog.dropped == ()
    assert core.client.known("table") is None  # else each dropped item would cost memory until the process ends
    assert _closed(core, "table")
    assert core.health.problems() == {}


def test_what_could_not_be_closed_is_closed_by_the_next_tick(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a store that hiccups during a DROP leaves a problem that stays until the environment restarts.

    Found by the world of the whole system.
    """
    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing().transactions, "close_shard", away)
        run_sync(definitions.drop(core, Drop("table", "t", if_exists=False)))
        assert "cannot be deleted yet" in core.health.problems()["table"]
    run_sync(core.tick())
    assert core.health.problems() == {}
    assert _closed(core, "table")


def test_a_second_materialization_into_a_table_is_refused(core: Core) -> None:
    """Damage: two materializations undo each other's rows, and the older one stops."""
    core.assembly.drivers.place = Endpoint()  # type: ignore[attr-defined]
    for name, table in (("m", "t"), ("n", "other")):
        sql = f"CREATE MATERIALIZATION {name} INTO memory AS t TO {table} KEY (k)"
        run_sync(definitions.create_materialization(core, cast("Any", parse(sql))))
    again = cast("Any", parse("CREATE MATERIALIZATION o INTO memory AS t TO Other KEY (k)"))
    with pytest.raises(DefinitionError, match="'n' writes to table 'other' there; name another table"):
        run_sync(definitions.create_materialization(core, again))


def test_an_endpoint_whose_collections_stand_still_says_that_it_waits(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an endpoint grows stale, and only an operator that knows what it reads can find out why.

    Found by the world of the whole system.
    """
    place = Endpoint()
    core.assembly.drivers.place = place  # type: ignore[attr-defined]
    bound = BoundTable("t", "t", ("k",))
    run_sync(definitions.add(core, Materialization("m", "memory", {}, (bound,), "m-1")))
    run_sync(core.tick())
    assert core.health.problems() == {}
    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing().transactions, "advance", away)
        run_sync(core.tick())
    assert "waits for its collections" in core.health.problems()["m"]


def with_endpoint(core: Core) -> None:
    """Add a materialization of the table ``t``; the next tick opens its session."""
    core.assembly.drivers.place = Endpoint()  # type: ignore[attr-defined]
    run_sync(definitions.add(core, Materialization("m", "memory", {}, (BoundTable("t", "t", ("k",)),), "m-1")))


def fenced_off(*_: object) -> None:
    """Answer as an endpoint does that has been asked for a newer session."""
    raise FencedError("m was fenced off by another session")


def test_a_session_that_a_dead_process_fenced_off_late_is_opened_anew_by_the_next_tick(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an Open that a crashed process sent lands at the endpoint after all, and ends the living environment.

    Found by single faults in scripts over whole environments.
    """
    with_endpoint(core)
    with monkeypatch.context() as patched:
        patched.setattr(KeyValueSession, "answers", fenced_off)
        run_sync(core.tick())
    said = core.health.problems()["m"]
    assert "fenced off by another session" in said
    assert is_wait(said), "nobody has to do anything"
    run_sync(core.tick())
    assert core.health.problems() == {}


def test_a_session_that_a_newer_environment_fenced_off_ends_the_tick(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a zombie opens its session at the endpoint again, and so fences the environment that took over."""
    with_endpoint(core)
    monkeypatch.setattr(KeyValueSession, "answers", fenced_off)
    newer = CatalogStore(Register(KEY, core.assembly.clock, core.assembly.ids, core.assembly.consensus))
    run_sync(newer.succeed(lambda before: before.holder))
    with pytest.raises(FencedError, match="generation 2"):
        run_sync(core.tick())


def test_a_table_that_could_not_be_opened_says_why_it_cannot_be_written(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the caller of an insert gets a KeyError, which says neither what is wrong nor that it passes.

    Found by single faults in scripts over whole environments.
    """
    with monkeypatch.context() as patched:
        patched.setattr(core.require_writing().transactions, "register", away)
        run_sync(definitions.add(core, Table("late", (("k", "string"),), "late-shard")))
    with pytest.raises(Unavailable, match="'late' is not open yet: the store does not answer"):
        core.table("late")
    run_sync(core.tick())
    assert core.table("late").name == "late"


def unreported(update: Any) -> Any:
    """Return ``update``, whose answer never comes."""

    async def lost(change: Any) -> None:
        await update(change)
        raise Indeterminate("the answer was lost")

    return lost


class Memory:
    """`Drivers` of one endpoint in memory."""

    place: Endpoint

    def __call__(self, endpoint: str, options: object) -> Any:
        """Return its driver."""
        return MemoryDriver(self.place, KeyValueSession)


@pytest.mark.parametrize(
    ("problems", "upper", "said"),
    [
        ({"late": "upstream does not answer"}, 5, "it waits for 'late'"),
        ({}, 5, "it waits for 'late'"),
        ({}, 6, "it stands still, and nothing that is known stands in its way"),
    ],
)
def test_a_view_whose_input_is_behind_waits_for_that(problems: dict[str, str], upper: int, said: str) -> None:
    """Damage: an operator reports a bug, and restarts what works, because an upstream is slow."""
    columns = (("k", "string"),)
    late = Source("late", columns, "s1", "files", {}, remap="r", progress="p")
    view = View("over", columns, "s2", "SELECT k FROM late", ("late",), {}, {})
    frontiers = {"late": Frontier(upper), "over": Frontier(5)}
    found = standing.standing(Catalog(items={"late": late, "over": view}), problems, frontiers, Frontier(5))
    assert found["over"].startswith(said)
