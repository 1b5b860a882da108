"""The catalog is one value, which only a process that knows all of it changes."""

from __future__ import annotations

import pytest

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Holder
from strandline.controller.location.items import (
    BoundTable,
    Connection,
    InstanceItem,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    View,
)
from strandline.controller.location.version import Prepared, Version
from strandline.errors import ConfigError, DefinitionError, Indeterminate
from strandline.persist.handles.register import Register
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync


def test_a_catalog_of_a_newer_format_is_neither_read_nor_written_back() -> None:
    """Damage: an older version that is started by mistake takes away what only the newer one knows of an item."""
    register = Register(KEY, HandClock(), CountingIds(), MemoryConsensus())
    body = b'{"format": 8, "epoch": 3, "items": {}, "new": [1]}'
    run_sync(register.update(lambda _: body))
    store = CatalogStore(register)
    for act in (store.read(), store.succeed(lambda _: pytest.fail("it was admitted"))):
        with pytest.raises(ConfigError, match="catalog is kept in format 8"):
            run_sync(act)
    assert run_sync(register.read()) == body


OLD = (
    b'{"format":1,"epoch":4,"holder":null,"items":{'
    b'"s":{"kind":"source","name":"s","columns":[["a","int"]],"shard":"s-1","connector":"files",'
    b'"options":{"path":"/d","on_error":"continue"},"remap":"s-2","progress":"s-3"},'
    b'"v":{"kind":"view","name":"v","columns":[],"shard":"s-4","sql":"","imports":["s"],"stages":{},"conf":{}}},'
    b'"dropped":[]}'
)
"""A catalog as the first release wrote it."""


def test_a_catalog_of_the_first_release_is_read_and_stays_readable_for_it() -> None:
    """Damage: an upgrade loses a source; or one step back is not possible, although nothing new was defined."""
    register = Register(KEY, HandClock(), CountingIds(), MemoryConsensus())
    run_sync(register.update(lambda _: OLD))
    store = CatalogStore(register)
    found = run_sync(store.read())
    source = found.items["s"]
    assert isinstance(source, Source)
    assert (source.shards, source.keep_history, found.forgives(source)) == (("s-1", "s-2", "s-3"), None, True)
    assert found.without("v").format == 1
    assert found.with_item(Connection("c", "list", {})).format == 2
    assert found.with_item(Connection("c", "list", {})).without("c").format == 2


def test_an_earlier_version_refuses_a_catalog_while_an_upstream_is_not_released() -> None:
    """Damage: one step back forgets which slot a dropped source left; or is refused long after it was released."""
    first = Catalog(items={"s": Source("s", (), "s-1", "files", {}, remap="s-2", progress="s-3")})
    left = first.without("s")
    assert (left.format, left.with_item(Connection("c", "list", {})).format) == (3, 3)
    assert left.released({"s-3"}).format == 1
    assert left.with_item(Connection("c", "list", {})).released({"s-3"}).format == 2


def test_an_earlier_version_refuses_a_catalog_in_which_a_query_was_replaced_or_a_source_has_got_columns() -> None:
    """Damage: after one step back a replica that runs the former query writes it into the view of the new one."""
    view = View("v", (), "s-1", "SELECT 1", (), {}, {})
    assert Catalog(items={"v": view}).with_item(view).format == 1
    assert Catalog(items={"v": view}, replaced=1).with_item(view).format == 5
    assert Catalog(replaced=1).with_item(view).without("v").format == 5
    source = Source("s", (), "s-1", "files", {}, remap="s-2", progress="s-3", grown=1)
    assert Catalog().with_item(source).format == 5


WITH_INSTANCE = (
    b'{"format":4,"epoch":7,"holder":null,"items":{'
    b'"x":{"kind":"instance","name":"X","replicas":{"a":"localhost:7071"}},'
    b'"v":{"kind":"view","name":"v","columns":[],"shard":"s-1","sql":"","imports":[],"stages":{},"conf":{},"checked":"",'
    b'"distrusted":"","keep_history":null,"refresh":null,"seed":"","instance":"x","audits":0}},'
    b'"dropped":[],"left":[],"writes":5,"unfenced":false,"promoted":""}'
)
"""A catalog as the first version wrote it that knows instances."""
SINCE_THEN = b',"root":"","replaced":0,"ended":[],"defined":[]}'
"""What later versions write behind that."""
OF_VIEWS_SINCE = b'"audits":0,"apart":"","narrowed":{},"begins":0,"fence":0,"query_from":0}'
"""What later versions write of a view."""


def test_a_catalog_with_an_instance_is_read_as_it_was_written() -> None:
    """Damage: after an upgrade a view runs in the process of the environment, beside the replicas."""
    register = Register(KEY, HandClock(), CountingIds(), MemoryConsensus())
    run_sync(register.update(lambda _: WITH_INSTANCE))
    store = CatalogStore(register)
    found = run_sync(store.read())
    instance, view = found.items["x"], found.items["v"]
    assert instance == InstanceItem("X", {"a": "localhost:7071"})
    assert isinstance(view, View)
    assert (view.instance, found.writes) == ("x", 5)
    assert run_sync(store.change(7, lambda catalog: catalog)) == found
    assert run_sync(register.read()) == WITH_INSTANCE[:-1].replace(b'"audits":0}', OF_VIEWS_SINCE) + SINCE_THEN


IN_INSTANCE = (
    b'{"format":4,"epoch":7,"holder":null,"items":{'
    b'"x":{"kind":"instance","name":"X","replicas":{}},'
    b'"s":{"kind":"source","name":"s","columns":[],"shard":"s-1","connector":"files","options":{},"remap":"s-2",'
    b'"progress":"s-3","keep_history":null,"instance":"x"},'
    b'"bank":{"kind":"shared source","name":"bank","connector":"postgres","options":{},"remap":"s-4","progress":"s-5",'
    b'"instance":"x"},'
    b'"m":{"kind":"materialization","name":"m","endpoint":"duckdb","options":{},"bindings":[],"id":"m-1",'
    b'"instance":"x"}},'
    b'"dropped":[],"left":[],"writes":5,"unfenced":false,"promoted":""}'
)
"""A catalog as the first version wrote it that runs sources and materializations in instances."""


def test_a_catalog_with_a_source_in_an_instance_is_read_as_it_was_written() -> None:
    """Damage: after an upgrade the process of the environment reads a source, or writes an endpoint, of an instance."""
    register = Register(KEY, HandClock(), CountingIds(), MemoryConsensus())
    run_sync(register.update(lambda _: IN_INSTANCE))
    store = CatalogStore(register)
    found = run_sync(store.read())
    assert found.items == {
        "x": InstanceItem("X", {}),
        "s": Source("s", (), "s-1", "files", {}, remap="s-2", progress="s-3", instance="x"),
        "bank": SharedSource("bank", "postgres", {}, "s-4", "s-5", instance="x"),
        "m": Materialization("m", "duckdb", {}, (), "m-1", instance="x"),
    }
    assert run_sync(store.change(7, lambda catalog: catalog)) == found
    since_then = IN_INSTANCE.replace(
        b'"id":"m-1","instance":"x"', b'"id":"m-1","instance":"x","location":"","left":[],"backfills":0,"fence":0'
    )
    since_then = since_then.replace(
        b'"keep_history":null,"instance":"x"',
        b'"keep_history":null,"instance":"x","grown":0,"starts":0,"comments":{}',
    )
    since_then = since_then.replace(b'"progress":"s-5","instance":"x"', b'"progress":"s-5","instance":"x","starts":0')
    assert run_sync(register.read()) == since_then[:-1] + SINCE_THEN


def test_an_earlier_version_refuses_a_catalog_while_it_has_an_instance() -> None:
    """Damage: one step back runs the views of an instance itself; or is refused although none is left."""
    x, c = InstanceItem("x", {}), Connection("c", "list", {})
    first = Catalog(items={"s": Source("s", (), "s-1", "files", {}, remap="s-2", progress="s-3")})
    both = first.with_item(x)
    assert (both.format, both.without("x").format) == (4, 1)
    assert (both.with_item(c).format, both.with_item(c).without("x").format) == (4, 2)
    assert (both.without("s").format, both.without("s").without("x").format) == (4, 3)
    assert both.without("s").released({"s-3"}).format == 4
    assert both.without("s").without("x").released({"s-3"}).format == 1


def test_an_instance_is_needed_by_the_views_in_it() -> None:
    """Damage: an instance is dropped under its views, which run nowhere."""
    there = View("There", (), "s-1", "", ("t",), {}, {}, instance="x")
    catalog = (
        Catalog().with_item(InstanceItem("X", {})).with_item(there).with_item(View("o", (), "s-2", "", (), {}, {}))
    )
    assert catalog.dependents("X") == ["There"]
    assert catalog.downstream("x") == {"x", "there"}
    assert catalog.without("x").dropped == (), "it has no shard"


def test_an_instance_is_needed_by_the_sources_and_materializations_in_it() -> None:
    """Damage: an instance is dropped under a source that nothing reads then, or an endpoint that stands still."""
    source = Source("s", (), "s-1", "files", {"connection": "C"}, remap="s-2", progress="s-3", instance="x")
    bank = SharedSource("bank", "postgres", {"connection": "c"}, "s-4", "s-5", instance="x")
    accounts = SourceTable("accounts", (), "s-6", "bank", "public.accounts")
    bound = (BoundTable("other", "other", ("k",)),)
    task = Materialization("m", "duckdb", {}, bound, "m-1", instance="x")
    catalog = Catalog().with_item(InstanceItem("X", {}))
    for item in (source, bank, accounts, task, Materialization("n", "duckdb", {}, bound, "m-2")):
        catalog = catalog.with_item(item)
    assert catalog.dependents("X") == ["bank", "m", "s"]
    assert catalog.downstream("x") == {"x", "bank", "accounts", "m", "s"}
    assert catalog.dependents("c") == ["bank", "s"], "a source needs its connections as before"
    assert catalog.dependents("other") == ["m", "n"], "and a materialization its collections"
    assert {each.format for each in (catalog, catalog.without("s").without("bank"))} == {4}


def test_the_log_of_a_dropped_materialization_is_remembered_until_it_is_taken_over() -> None:
    """Damage: a replica that is cut off writes rows of a dropped materialization into the table of the next one."""
    bound = (BoundTable("t", "t", ("k",)),)
    one, next_one = (Materialization("m", "duckdb", {}, bound, each) for each in ("m-1", "m-2"))
    catalog = Catalog().with_item(one)
    assert catalog.ended == ()
    for dropped in (catalog.without("m"), catalog.with_item(next_one)):
        assert (dropped.ended, dropped.format) == (("materialization/m-1",), 6)
        assert (dropped.taken_over({"materialization/m-1"}).ended, dropped.taken_over({one.log}).format) == ((), 1)
    assert catalog.without("m").taken_over({"other"}).ended == ("materialization/m-1",)


def held(deployment: str, process: int = 1) -> Holder:
    """The holder of a location."""
    return Holder(deployment, "host", process, 1, 1, reentrant=False)


def test_replicas_write_under_one_epoch_until_another_deployment_or_version_takes_over() -> None:
    """Damage: a restart of the controller fences the replicas; or those of the version before go on writing."""
    store = CatalogStore(Register(KEY, HandClock(), CountingIds(), MemoryConsensus()))

    def succeeded(holder: Holder, version: Version | None = None) -> tuple[int, int]:
        edit = (lambda catalog: catalog) if version is None else version.promoted
        found = run_sync(store.succeed(lambda _: holder, edit))
        return found.epoch, found.writes

    assert succeeded(held("d")) == (1, 1), "it was never raised"
    assert succeeded(held("d", process=2)) == (2, 1), "the process before has died"
    run_sync(store.leave(2, held("d", process=2)))
    assert succeeded(held("d")) == (3, 1), "the process before has closed the location"
    assert succeeded(held("other")) == (4, 4)
    assert succeeded(held("other"), Version()) == (5, 5), "it is promoted"
    view = View("v", (), "s-1", "", (), {}, {})
    assert succeeded(held("d"), Version(views={"v": Prepared(view, "s-1")})) == (6, 6)
    assert store.current.items == {"v": view}


def test_a_replica_is_fenced_out_at_once_or_by_the_next_generation() -> None:
    """Damage: a dropped replica writes on for ever; or replicas write under an epoch above the environment's.

    An environment closes the shard of a dropped view under its own epoch: one below theirs would fence itself.
    """
    store = CatalogStore(Register(KEY, HandClock(), CountingIds(), MemoryConsensus()))

    def fenced_out() -> tuple[int, bool]:
        epoch = store.current.epoch
        found = run_sync(store.change(epoch, lambda catalog: catalog.with_writes_raised(epoch)))
        return found.writes, found.unfenced

    def succeeded() -> tuple[int, bool]:
        found = run_sync(store.succeed(lambda _: held("d")))
        return found.writes, found.unfenced

    assert succeeded() == (1, False)
    assert fenced_out() == (1, True), "the first generation has no epoch above that of its replicas"
    assert succeeded() == (2, False)
    assert succeeded() == (2, False)
    assert fenced_out() == (3, False)
    assert fenced_out() == (3, True)
    promoted = run_sync(store.succeed(lambda _: held("d"), Version().promoted))
    assert (promoted.epoch, promoted.writes, promoted.unfenced) == (4, 4, False)


def test_a_refused_take_over_raises_nothing() -> None:
    """Damage: an environment that may not open the location fences the replicas of the one that has it."""
    store = CatalogStore(Register(KEY, HandClock(), CountingIds(), MemoryConsensus()))
    run_sync(store.succeed(lambda _: held("d")))

    def refuse(_: Catalog) -> Holder:
        raise ConfigError("it is held")

    with pytest.raises(ConfigError, match="it is held"):
        run_sync(store.succeed(refuse, Version().promoted))
    assert run_sync(store.read()) == store.current
    assert (store.current.epoch, store.current.writes) == (1, 1)


def test_what_a_source_needs_is_dropped_after_it_and_gives_it_its_options() -> None:
    """Damage: a source is left without the server that it reads, or with another one's password."""
    connection = Connection("PG", "postgres", {"host": "h", "password": "env:PW"})
    bank = SharedSource("Bank", "postgres", {"connection": "pg", "publication": "p", "errors_max": "3"}, "s-1", "s-2")
    accounts = SourceTable("accounts", (("id", "int"),), "s-3", "bank", "public.accounts", {"errors_max": "9"})
    catalog = Catalog().with_item(connection).with_item(bank).with_item(accounts)
    assert catalog.dependents("pg") == ["Bank"]
    assert catalog.dependents("bank") == ["accounts"]
    own = {"host": "h", "password": "env:PW", "publication": "p", "errors_max": "3"}
    assert catalog.source_options(bank) == own
    assert catalog.source_options(accounts) == {**own, "errors_max": "9"}
    assert catalog.fed_by("BANK") == [accounts]
    assert catalog.without("accounts").dropped == ("s-3",)
    with pytest.raises(DefinitionError, match="source 'Bank' is no collection; its tables are: accounts"):
        catalog.collection("bank")
    with pytest.raises(DefinitionError, match="there is no collection 'pgg'"):
        catalog.collection("pgg")


def test_what_no_item_keeps_is_dropped_and_nothing_else() -> None:
    """Damage: a view loses the stage that it shares with one that was dropped; or a stage is kept for ever."""
    one = View("one", (), "s-1", "", (), {"joined": "s-9"}, {})
    two = View("two", (), "s-2", "", (), {"joined": "s-9"}, {})
    task = Materialization("task", "duckdb", {}, (), "m-1")
    both = Catalog(items={"one": one, "two": two, "task": task})
    assert both.having({"two": two}).dropped == ("s-1",)
    assert both.having({"two": two}).having({}).dropped == ("s-1", "s-2", "s-9")
    replanned = View("two", (), "s-2", "", (), {"summed": "s-10"}, {})
    assert both.having({"one": one, "two": replanned}).dropped == ()
    assert Catalog(items={"two": two}).having({"two": replanned}).dropped == ("s-9",)


class Late(MemoryConsensus):
    """While it is ``silent`` it answers no change, and keeps the first: that may happen later."""

    silent = False
    kept: CompareAndSet | None = None

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """See `Consensus.compare_and_set`."""
        if self.silent:
            self.kept = self.kept or request
            raise Indeterminate("no answer")
        return await super().compare_and_set(request)


def test_a_take_over_that_had_no_answer_holds_nothing_later() -> None:
    """Damage: the location belongs to a living process that has no environment open, and nothing can open it."""
    consensus = Late()
    store = CatalogStore(Register(KEY, HandClock(), CountingIds(), consensus))
    holder = Holder("d", "host", 1, 1, 1, reentrant=False)
    consensus.silent = True
    with pytest.raises(Indeterminate):
        run_sync(store.succeed(lambda _: holder))
    consensus.silent = False
    run_sync(store.leave(1, holder))
    assert consensus.kept is not None
    assert isinstance(run_sync(consensus.compare_and_set(consensus.kept)), Mismatch)
    assert run_sync(store.read()).holder is None


@pytest.mark.parametrize("lands", ["before", "after", "never"])
def test_once_it_is_settled_a_doubtful_change_has_happened_or_never_will(lands: str) -> None:
    """Damage: a CREATE that had no answer is reported as not done, and its view is there an hour later."""
    consensus = Late()
    store = CatalogStore(Register(KEY, HandClock(), CountingIds(), consensus))
    run_sync(store.succeed(lambda _: Holder("d", "host", 1, 1, 1, reentrant=False)))
    view = View("v", (), "s-1", "", (), {}, {})
    consensus.silent = True
    with pytest.raises(Indeterminate):
        run_sync(store.change(1, lambda catalog: catalog.with_item(view)))
    consensus.silent = False
    assert consensus.kept is not None
    if lands == "before":
        assert isinstance(run_sync(consensus.compare_and_set(consensus.kept)), Committed)
    run_sync(store.settle(1))
    assert store.current.items == ({"v": view} if lands == "before" else {})
    if lands == "after":
        assert isinstance(run_sync(consensus.compare_and_set(consensus.kept)), Mismatch)
    assert run_sync(store.read()) == store.current
    versions = run_sync(consensus.scan(KEY, 0, 99))
    run_sync(store.settle(1))
    assert run_sync(consensus.scan(KEY, 0, 99)) == versions, "nothing is in doubt, and yet it writes"


def test_an_item_that_was_dropped_meanwhile_is_not_brought_back() -> None:
    """Damage: the self-check marks a view whose DROP had no answer: the view returns, and its shards are closed."""
    before = View("v", (), "s-1", "", (), {}, {})
    after = View("v", (), "s-1", "", (), {}, {}, checked="right")
    there = Catalog(items={"v": before})
    assert there.with_changed(before, after).items == {"v": after}
    gone = there.without("v")
    assert gone.with_changed(before, after) == gone
