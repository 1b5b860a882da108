"""An endpoint's tables filled again, verified, and refused: over the real core and DuckDB, without Spark."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from strandline.controller.asking import verification
from strandline.controller.asking.verification import backfill
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import CreateMaterialization
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import BoundTable, Table
from strandline.errors import DefinitionError, InvalidUsage, Unavailable
from strandline.instance.tables import Change
from strandline.materialize.protocol.task import WHOLE
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import CompareAndSet
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import DRIVERS, driver, named

COLUMNS = (("k", "bigint"), ("x", "string"))
PEOPLE, ORDERS = [{"k": 1, "x": "ann"}], [{"k": 1, "x": "one"}, {"k": 2, "x": "two"}]


class Place:
    """A location in memory, and a DuckDB file."""

    def __init__(self, root: Path) -> None:
        self.file = root / "out.duckdb"
        self._clock = HandClock(1_000)
        self._blob, self.consensus = MemoryBlob(), MemoryConsensus()

    async def open(self) -> Core:
        """Open it as the next process would: the last one died."""
        self._clock.now += 1
        assembly = list_assembly(
            self._clock,
            CountingIds(f"at-{self._clock.now}"),
            self._blob,
            self.consensus,
            drivers=partial(driver, self._clock),
        )
        return await Core.open(assembly, Config(take_over=True), Mode.FULL)

    async def filled(self) -> Core:
        """Open it for the first time: two tables in one materialization, which has followed them."""
        core = await self.open()
        for name in ("orders", "people"):
            await definitions.add(core, Table(name, COLUMNS, f"shard-{name}"))
        binds = (Bind("orders", "Orders", ("k",)), Bind("people", "People", ("k",)))
        options = {"path": str(self.file)}
        await definitions.create_materialization(core, CreateMaterialization("out", "duckdb", options, binds, False))
        await insert(core, "orders", ORDERS)
        await insert(core, "people", PEOPLE)
        await ticked(core)
        return core

    def ask(self, sql: str) -> list[Any]:
        """Return what a reader of the file sees, or do something to it."""
        with duckdb.connect(str(self.file)) as connection:
            return connection.execute(sql).fetchall()


async def insert(core: Core, table: str, rows: list[dict[str, Any]]) -> None:
    """Insert rows."""
    opened = core.table(table)
    frame = updates(opened.schema, [{**row, "__time": 0} for row in rows])
    await core.commit([Change(opened, frame, False, len(rows))], None)


async def ticked(core: Core) -> None:
    """Tick; nothing may have a problem."""
    await core.tick()
    assert core.health.problems() == {}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fresh one."""
    return Place(tmp_path)


def test_a_backfill_says_what_it_does_before_it_does_it(place: Place) -> None:
    """Damage: a person learns that a table was emptied from its readers."""

    async def body() -> None:
        core = await place.filled()
        said = await backfill(core, "out", "Orders", apply=False)
        assert said["tables"] == [{"collection": "orders", "table": "Orders", "backfill": 1}]
        assert said["actions"] == [
            "table 'Orders' is filled from the start: its rows stay until the new ones replace them"
        ]
        assert core.catalog.items["out"].bindings[0].backfill == 0
        place.ask('DROP TABLE "Orders"; CREATE TABLE "Orders" (k BIGINT)')
        added, _ = (await backfill(core, "out", "Orders", apply=False))["actions"]
        assert added == "added column 'x' to table 'Orders'"
        assert place.ask("SELECT column_name FROM duckdb_columns() WHERE table_name = 'Orders'") == [("k",)]

    asyncio.run(body())


def test_a_backfill_replaces_what_is_wrong_and_leaves_the_other_table(place: Place) -> None:
    """Damage: rows that a person changed by hand stay wrong for ever, or everything is sent again."""

    async def body() -> None:
        core = await place.filled()
        place.ask("UPDATE \"Orders\" SET x = 'by hand'; UPDATE \"People\" SET x = 'by hand'")
        await backfill(core, "OUT", "orders", apply=True)
        await insert(core, "orders", [{"k": 3, "x": "three"}])
        await ticked(core)
        assert place.ask('SELECT * FROM "Orders" ORDER BY k') == [(1, "one"), (2, "two"), (3, "three")]
        assert place.ask('SELECT * FROM "People"') == [(1, "by hand")]
        await insert(core, "orders", [{"k": 4, "x": "four"}])
        await ticked(core)
        assert core.require_writing().instance._deliveries.tasks["out"].status.committed.stored == 4, (
            "only what is new after the refill"
        )

    asyncio.run(body())


def test_all_tables_are_filled_again_where_none_is_named(place: Place) -> None:
    """Damage: of several tables one keeps what is wrong."""

    async def body() -> None:
        core = await place.filled()
        place.ask('DROP TABLE "Orders"; DELETE FROM "People"')
        assert len((await backfill(core, "out", None, apply=True))["tables"]) == 2
        await ticked(core)
        assert place.ask('SELECT count(*) FROM "Orders"') == [(2,)]
        assert place.ask('SELECT x FROM "People"') == [("ann",)]

    asyncio.run(body())


@pytest.mark.parametrize("when", ["before the catalog", "after the catalog", "before the commit", "after the commit"])
def test_a_backfill_that_dies_in_the_middle_is_finished_or_never_began(
    place: Place, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a table stays empty, has every row twice, or counts as filled though it is not."""

    class Died(BaseException):
        """The process ended."""

    def dies(before: bool, call: Any) -> Any:
        async def dying(*args: Any, **named: Any) -> None:
            if not before:
                await call(*args, **named)
            raise Died

        return dying

    async def body() -> None:
        core = await place.filled()
        place.ask("UPDATE \"Orders\" SET x = 'by hand'")
        with monkeypatch.context() as patched:
            if when.endswith("catalog"):
                change = dies(when.startswith("before"), core.catalogs.change)
                patched.setattr(core.catalogs, "change", change)
            with pytest.raises(Died):
                await backfill(core, "out", "orders", apply=True)
                await core.require_writing().reconcile()
                task = core.require_writing().instance._deliveries.tasks["out"]
                await task.open()
                session = task._tasks[WHOLE]._line._session
                patched.setattr(session, "_commit", dies(when.startswith("before"), session._commit))
                await core.tick()
        again = await place.open()
        for _ in range(2):
            await ticked(again)
        wanted = [(1, "by hand"), (2, "by hand")] if when == "before the catalog" else [(1, "one"), (2, "two")]
        assert place.ask('SELECT * FROM "Orders" ORDER BY k') == wanted
        assert place.ask('SELECT * FROM "People"') == [(1, "ann")]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("name", "collection", "said"),
    [
        ("ou", None, "no materialization 'ou'; did you mean 'out'"),
        ("orders", None, "no materialization 'orders'"),
        ("out", "order", "no binding of 'out' to 'order'; did you mean 'orders'"),
    ],
)
def test_what_is_not_there_is_named(place: Place, name: str, collection: str | None, said: str) -> None:
    """Damage: a typing error fills another table again, or none, and says that it is done."""

    async def body() -> None:
        core = await place.filled()
        with pytest.raises(DefinitionError, match=said):
            await backfill(core, name, collection, apply=True)

    asyncio.run(body())


def test_only_an_environment_that_writes_applies_it(place: Place) -> None:
    """Damage: a reader raises a counter that the process that writes does not know of."""

    async def body() -> None:
        core = await place.filled()
        core.writing, writing = None, core.writing
        assert (await backfill(core, "out", None, apply=False))["applied"] is False
        with pytest.raises(InvalidUsage, match="read-only"):
            await backfill(core, "out", None, apply=True)
        core.writing = writing

    asyncio.run(body())


def test_a_catalog_without_counters_is_read(place: Place) -> None:
    """Damage: an upgrade fills every table again, or cannot open the location."""
    old = b'{"collection":"v","table":"t","key":["k"]}'
    assert msgspec.json.decode(old, type=BoundTable) == BoundTable("v", "t", ("k",), 0)


def test_verify_names_every_table_of_a_materialization(place: Place) -> None:
    """Damage: verify says "equal" of one table and nothing of the one that is wrong, or right."""

    async def body() -> None:
        core = await place.filled()
        found = await verification.verify_endpoint(core, "out")
        assert found.ok
        assert [line.split(":")[0] for line in str(found).splitlines()] == ["out/Orders", "out/People"]
        place.ask('DELETE FROM "People"')
        found = await verification.verify_endpoint(core, "out")
        assert (found.name, found.ok, found.missing, found.extra) == ("out", False, 1, 0)
        assert [(table.name, table.ok) for table in found.tables] == [("out/Orders", True), ("out/People", False)]
        assert found.sample.to_pylist()[0]["x"] == "ann"
        assert "out/Orders: equal" in str(found)
        assert "out/People: 1 missing, 0 extra" in str(found)

    asyncio.run(body())


def test_verify_knows_that_an_endpoint_is_beyond_its_recovery_log(place: Place) -> None:
    """Damage: a process dies between the commit and the log, and verify says that the right rows are wrong."""

    async def body() -> None:
        core = await place.filled()
        written, logs = place.consensus.compare_and_set, []

        async def refused(request: CompareAndSet) -> Any:
            if request.key == core.catalog.items["out"].log and place.ask('SELECT 1 FROM "People" WHERE k = 2'):
                logs.append(request.key)
                raise Unavailable("the log cannot be written")
            return await written(request)

        place.consensus.compare_and_set = refused
        await insert(core, "people", [{"k": 2, "x": "bob"}])
        await core.tick()
        assert logs, "the endpoint has the row, and the log does not say so"
        found = await verification.verify_endpoint(core, "out")
        assert found.ok, str(found)
        place.ask('DELETE FROM "People" WHERE k = 2')
        found = await verification.verify_endpoint(core, "out")
        assert (found.missing, found.extra) == (1, 0)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "/f", "pth": "/g"}, r"option 'pth' is not known; did you mean 'path'"),
        ({}, r"option 'path' is missing; it takes delete, path \(required\)"),
        ({"path": ""}, "option 'path' is '': it must not be empty"),
    ],
)
def test_options_are_checked_by_what_the_driver_says_it_takes(options: dict[str, str], said: str) -> None:
    """Damage: a misspelt option is ignored, and its author believes that it holds."""
    with pytest.raises(DefinitionError, match=f"^endpoint duckdb: {said}"):
        driver(HandClock(), "duckdb", options)


def test_the_options_that_are_listed_are_those_that_are_taken(tmp_path: Path) -> None:
    """Damage: `strandline driver spec` prints options that CREATE MATERIALIZATION refuses."""
    spec = DRIVERS["duckdb"].spec
    defaults = {
        name: each.get("default", str(tmp_path / "f")) for name, each in spec.config_schema["properties"].items()
    }
    taken = driver(HandClock(), "duckdb", defaults)
    assert asyncio.run(taken.spec()) == spec
    assert all(each["description"] for each in spec.config_schema["properties"].values())
    with pytest.raises(DefinitionError, match="there is no endpoint 'duckdbb'"):
        named(DRIVERS, "endpoint", "duckdbb")
