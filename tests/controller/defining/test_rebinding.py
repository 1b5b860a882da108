"""ALTER MATERIALIZATION … ADD VIEW, DROP VIEW: over the real core and a SQLite file, without Spark."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from strandline.controller.asking.status import status
from strandline.controller.asking.verification import verify_endpoint
from strandline.controller.core import Core
from strandline.controller.defining import altering, definitions
from strandline.controller.defining.trying.anew import anew
from strandline.controller.introspection.definition import definition
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import Alter, CreateMaterialization, Drop, parse
from strandline.controller.location.catalog import FORMAT_OF_UNBOUND
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import BoundTable, Materialization, Table
from strandline.controller.retention import TICKS_BETWEEN
from strandline.errors import DefinitionError, Position, Unavailable
from strandline.instance.tables import Change
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.materialize.status import Counts
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import driver

COLUMNS = (("k", "bigint"), ("x", "string"))
TABLES = ("orders", "people", "places")


class Place:
    """A location in memory with three tables, and a SQLite file that follows the first two of them."""

    def __init__(self, root: Path, splits: int = 1) -> None:
        self.file = root / "out.sqlite"
        self._clock = HandClock(1_000)
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()
        self._splits = splits
        self._written = dict.fromkeys(TABLES, 0)

    async def open(self) -> Core:
        """Open it as the next process would: the last one died."""
        self._clock.now += 1
        ids, drivers = CountingIds(f"at-{self._clock.now}"), partial(driver, self._clock)
        assembly = list_assembly(self._clock, ids, self._blob, self._consensus, drivers=drivers)
        return await Core.open(assembly, Config(take_over=True), Mode.FULL)

    async def filled(self) -> Core:
        """Open it for the first time."""
        core = await self.open()
        for name in TABLES:
            await definitions.add(core, Table(name, COLUMNS, f"shard-{name}"))
        binds = tuple(Bind(name, name.title(), ("k",)) for name in TABLES[:2])
        options = {"path": str(self.file), "splits": str(self._splits)}
        await definitions.create_materialization(core, CreateMaterialization("Out", "sqlite", options, binds))
        await self.grown(core)
        return core

    async def insert(self, core: Core) -> None:
        """Insert a row into each table that is there."""
        for name in TABLES:
            if name in core.catalog.items:
                opened = core.table(name)
                rows = [{"k": self._written[name], "x": name, "__time": 0}]
                await core.commit([Change(opened, updates(opened.schema, rows), False, 1)], None)
                self._written[name] += 1
        self._clock.now += 1_000

    async def grown(self, core: Core, ticks: int = 1) -> None:
        """Insert rows and tick; nothing may have a problem."""
        for _ in range(ticks):
            await self.insert(core)
            await core.tick()
            assert core.health.problems() == {}

    def held(self, table: str) -> int:
        """Return how many rows a table has, each once."""
        with closing(sqlite3.connect(self.file)) as inner:
            count, distinct = inner.execute(f'SELECT count(*), count(DISTINCT k) FROM "{table}"').fetchone()
        assert count == distinct
        return int(count)

    def change(self, sql: str) -> None:
        """Change something by hand."""
        with closing(sqlite3.connect(self.file)) as inner:
            inner.execute(sql)
            inner.commit()

    def written(self, name: str) -> int:
        """Return how many rows a table of the location has."""
        return self._written[name]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fresh one."""
    return Place(tmp_path)


async def altered(core: Core, text: str) -> None:
    """Run a statement."""
    statement = parse(text)
    assert isinstance(statement, Alter)
    await altering.alter(core, statement)


def out(core: Core) -> Materialization:
    """Return the materialization."""
    return core.catalog.one("out", Materialization, "materialization")


def committed(core: Core) -> Counts:
    """Return what the task that runs now has committed."""
    return core.require_writing().instance._deliveries.tasks["out"].status.committed


async def said(core: Core) -> Any:
    """Return what the status says of the tables that views have left."""
    return (await status(core))["materializations"]["Out"]["left"]


@pytest.mark.parametrize("splits", [1, 3])
def test_a_view_leaves_and_what_stays_goes_on_from_its_place(tmp_path: Path, splits: int) -> None:
    """Damage: all is pushed again because one of several views went, or the table that it left is said nowhere."""

    async def body() -> None:
        place = Place(tmp_path, splits)
        core = await place.filled()
        place.change("UPDATE \"Orders\" SET x = 'by hand'")
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people")
        await place.grown(core, 2)
        assert committed(core).stored == 2, "the new rows of what stays, and no other"
        assert (place.held("Orders"), place.held("People")) == (3, 1)
        assert "AS orders TO Orders KEY (k)" in definition(out(core))
        (text,) = await said(core)
        removal = "ALTER MATERIALIZATION `Out` DROP VIEW people REMOVE ROWS"
        assert text == f"the rows of 'people' stay in 'People' of sqlite; {removal} takes them out"
        assert core.catalog.format == FORMAT_OF_UNBOUND
        await definitions.drop(core, Drop("table", "people", if_exists=False))
        await place.grown(core)
        assert place.held("Orders") == 4

    asyncio.run(body())


@pytest.mark.parametrize("splits", [1, 3])
def test_a_view_joins_and_all_come_to_one_time(tmp_path: Path, splits: int) -> None:
    """Damage: the views that were there are pushed again, or the new one never has what they have."""

    async def body() -> None:
        place = Place(tmp_path, splits)
        core = await place.filled()
        await place.grown(core, 2)
        await altered(core, "ALTER MATERIALIZATION out ADD VIEW places TO `Some places` KEY (k)")
        await place.grown(core)
        assert committed(core).stored == 2 + 4, "the rows of the new one, and one new row of each of the others"
        assert [place.held(name) for name in ("Orders", "People", "Some places")] == [4, 4, 4]
        assert (await verify_endpoint(core, "out")).ok
        await place.grown(core, 2)
        assert [place.held(name) for name in ("Orders", "People", "Some places")] == [6, 6, 6]
        assert (await verify_endpoint(core, "out")).ok
        assert core.catalog.format < FORMAT_OF_UNBOUND

    asyncio.run(body())


def test_several_views_change_places_at_once(place: Place) -> None:
    """Damage: between two statements the endpoint has neither."""

    async def body() -> None:
        core = await place.filled()
        await altered(
            core,
            "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS, DROP VIEW orders, "
            "ADD VIEW places KEY (k), ADD VIEW orders TO o KEY (k)",
        )
        await place.grown(core, 2)
        assert [place.held(name) for name in ("Orders", "People", "places", "o")] == [1, 0, 3, 3]
        assert [each.bound.table for each in out(core).left] == ["Orders"]

    asyncio.run(body())


def test_a_view_comes_back_to_the_table_that_it_has_left(place: Place) -> None:
    """Damage: rows that went in between stay in the table, or the task asks for a past that is gone."""

    async def body() -> None:
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people KEEP ROWS")
        place.change("INSERT INTO \"People\" VALUES (99, 'by hand')")
        await place.grown(core, 2 * TICKS_BETWEEN)
        held = core.client.known("shard-people")
        assert held is not None
        assert out(core).log not in held.criticals, "a past that no one will ask for is kept"
        with pytest.raises(DefinitionError, match="write TO `?People`? to fill that one"):
            await altered(core, "ALTER MATERIALIZATION out ADD VIEW people KEY (k)")
        await altered(core, "ALTER MATERIALIZATION out ADD VIEW people TO People KEY (k)")
        await place.grown(core)
        assert place.held("People") == place.written("people"), "and not what was there"
        assert out(core).left == ()
        assert await said(core) == []
        again = await place.open()
        await place.grown(again)
        assert place.held("People") == place.written("people")

    asyncio.run(body())


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_rows_are_taken_out_and_the_table_is_forgotten(tmp_path: Path, splits: int, later: bool) -> None:
    """Damage: what no one keeps up to date any longer is read as if someone did."""

    async def body() -> None:
        place = Place(tmp_path, splits)
        core = await place.filled()
        await place.grown(core)
        if later:
            await altered(core, "ALTER MATERIALIZATION out DROP VIEW people")
            await place.grown(core)
            await definitions.drop(core, Drop("table", "people", if_exists=False))
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS")
        assert await said(core) == ["the rows of 'people' are taken out of 'People' of sqlite, which stays there"]
        with pytest.raises(DefinitionError, match="its rows are being taken out"):
            await altered(core, "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS")
        await place.grown(core, 2)
        assert (place.held("People"), place.held("Orders")) == (0, place.written("orders"))
        assert (out(core).left, await said(core)) == ((), [])
        assert (await verify_endpoint(core, "out")).ok
        if not later:
            await altered(core, "ALTER MATERIALIZATION out ADD VIEW people TO People KEY (k)")
            await place.grown(core, 2)
            assert place.held("People") == place.written("people")

    asyncio.run(body())


def test_the_option_says_what_becomes_of_rows(place: Place) -> None:
    """Damage: the person who wrote the option believes that the rows are gone."""

    async def body() -> None:
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out SET (on_drop remove)")
        await altered(core, "ALTER MATERIALIZATION out ADD VIEW places KEY (k)")
        await place.grown(core)
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people, DROP VIEW places KEEP ROWS")
        await place.grown(core, 2)
        assert (place.held("People"), place.held("places")) == (0, 2)

    asyncio.run(body())


def test_a_dropped_materialization_holds_no_history(place: Place) -> None:
    """Damage: what changed since an endpoint was given up is kept for ever, and never compacted."""

    async def body() -> None:
        core = await place.filled()
        log = out(core).log
        await definitions.drop(core, Drop("materialization", "out", if_exists=False))
        await place.grown(core, 2 * TICKS_BETWEEN)
        held = core.client.known("shard-orders")
        assert held is not None
        assert log not in held.criticals

    asyncio.run(body())


async def contents(core: Core, item: Materialization, table: str) -> list[Any]:
    """Return the keys that a table of an endpoint has."""
    collection = next(each.collection for each in item.written if each.table == table)
    bound = definitions.spec_of(replace(item, left=()), core.catalog).bindings
    binding = next(each for each in bound if each.collection == collection)
    held = await core.assembly.drivers(item.endpoint, item.endpoint_options).contents(item.name, binding)
    return sorted([row["k"] async for rows in held.tables for row in rows.to_pylist()])


@pytest.mark.parametrize(
    ("endpoint", "path", "more"),
    [("duckdb", "e.duckdb", {}), ("files", "lake", {"format": "csv"}), ("files", "lake", {"format": "parquet"})],
)
def test_views_come_and_go_at_every_kind_of_endpoint(
    tmp_path: Path, endpoint: str, path: str, more: dict[str, str]
) -> None:
    """Damage: what is true of one endpoint is promised of all."""

    async def body() -> None:
        place = Place(tmp_path)
        core = await place.filled()
        binds = tuple(Bind(name, name.title(), ("k",)) for name in TABLES[:2])
        options = {"path": str(tmp_path / path), **more}
        await definitions.create_materialization(core, CreateMaterialization("also", endpoint, options, binds))
        await place.grown(core)
        before = core.catalog.one("also", Materialization, "materialization")
        await altered(core, "ALTER MATERIALIZATION also DROP VIEW people, ADD VIEW places TO Places KEY (k)")
        await place.grown(core)
        assert (await verify_endpoint(core, "also")).ok
        assert len(await contents(core, before, "People")) == place.written("people") - 1
        await altered(
            core, "ALTER MATERIALIZATION also DROP VIEW places REMOVE ROWS, ADD VIEW people TO People KEY (k)"
        )
        await place.grown(core, 2)
        assert (await verify_endpoint(core, "also")).ok
        assert await contents(core, replace(before, bindings=(BoundTable("places", "Places", ("k",)),)), "Places") == []
        await altered(core, "ALTER MATERIALIZATION also DROP VIEW people")
        await altered(core, "ALTER MATERIALIZATION also DROP VIEW people REMOVE ROWS")
        await place.grown(core, 2)
        assert await contents(core, before, "People") == []
        assert core.catalog.one("also", Materialization, "materialization").left == ()
        assert (await verify_endpoint(core, "also")).ok
        taken = CreateMaterialization("taker", endpoint, options, (Bind("places", "People", ("k",)),))
        await definitions.create_materialization(core, taken)
        await place.grown(core, 2)
        assert core.problems == {}
        assert (await verify_endpoint(core, "taker")).ok
        assert (await verify_endpoint(core, "also")).ok

    asyncio.run(body())


def test_what_was_pushed_is_not_taken_back(place: Place) -> None:
    """Damage: rows are said to be taken out of a topic, and every consumer has them."""

    async def body() -> None:
        core = await place.filled()
        options = {"url": "http://127.0.0.1:9/", "delta": "true"}
        binds = (Bind("people", "people", ()), Bind("places", "places", ()))
        await definitions.create_materialization(core, CreateMaterialization("hook", "webhook", options, binds))
        with pytest.raises(DefinitionError, match="webhook cannot take the rows of 'places' out of 'places'"):
            await altered(core, "ALTER MATERIALIZATION hook DROP VIEW places REMOVE ROWS")
        await altered(core, "ALTER MATERIALIZATION hook DROP VIEW places")
        (text,) = (await status(core))["materializations"]["hook"]["left"]
        assert (
            text == "what 'places' has put into 'places' of webhook stays, and only the endpoint's own tools remove it"
        )
        with pytest.raises(DefinitionError, match="webhook cannot take the rows"):
            await altered(core, "ALTER MATERIALIZATION hook DROP VIEW places REMOVE ROWS")
        await altered(core, "ALTER MATERIALIZATION hook ADD VIEW places")
        assert (await status(core))["materializations"]["hook"]["left"] == []

    asyncio.run(body())


def test_what_another_one_fills_by_now_is_not_emptied(place: Place) -> None:
    """Damage: rows of a materialization are gone because another one once had its table."""

    async def body() -> None:
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people")
        await place.grown(core)
        place.change('DELETE FROM "People"')
        bind, options = (Bind("places", "People", ("k",)),), {"path": str(place.file)}
        await definitions.create_materialization(core, CreateMaterialization("other", "sqlite", options, bind))
        await place.grown(core)
        said = "'other' writes to table 'People' there; its rows have replaced what was left"
        with pytest.raises(DefinitionError, match=said):
            await altered(core, "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS")
        await place.grown(core)
        assert place.held("People") == place.written("places")

    asyncio.run(body())


def test_a_table_that_is_not_emptied_yet_costs_no_write_of_the_catalog(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: while an endpoint is away, each tick writes the catalog, and looks at all that runs anew."""

    async def body() -> None:
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS")
        writes, change = [], core.catalogs.change

        async def counted(*given: Any) -> Any:
            writes.append(given)
            return await change(*given)

        async def away(*_: Any) -> Any:
            raise Unavailable("the endpoint is away")

        async def ticks() -> None:
            for _ in range(3):
                await place.insert(core)
                await core.tick()

        monkeypatch.setattr(core.catalogs, "change", counted)
        with monkeypatch.context() as patched:
            patched.setattr(SqlSession, "_commit", away)
            await ticks()
        assert writes == []
        assert [left.empties for left in out(core).left] == [True]
        await ticks()
        assert (len(writes), out(core).left, place.held("People")) == (1, (), 0)

    asyncio.run(body())


@pytest.mark.parametrize("removes", [False, True])
def test_what_is_defined_anew_still_knows_what_dropped_views_have_left(place: Place, removes: bool) -> None:
    """Damage: rows that were to be taken out stay for ever, and nothing says so."""

    async def body() -> None:
        core = await place.filled()
        await altered(core, f"ALTER MATERIALIZATION out DROP VIEW people {'REMOVE' if removes else 'KEEP'} ROWS")
        before = out(core)
        await anew(core, "out", apply=True)
        assert out(core).id != before.id
        assert out(core).left == before.left
        await core.tick()
        await place.grown(core, 3)
        if not removes:
            (text,) = await said(core)
            assert "the rows of 'people' stay in 'People'" in text
            await altered(core, "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS")
            await place.grown(core, 3)
        assert (place.held("People"), place.held("Orders")) == (0, place.written("orders"))
        assert (out(core).left, await said(core)) == ((), [])
        assert (await verify_endpoint(core, "out")).ok

    asyncio.run(body())


TWICE = "ALTER MATERIALIZATION out ADD VIEW places KEY (k), ADD VIEW places TO p KEY (k)"


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("ALTER MATERIALIZATION out ADD VIEW people KEY (k)", "'Out' has view 'people' already, in table 'Peo", 36),
        (TWICE, "'Out' has view 'places' already", 61),
        ("ALTER MATERIALIZATION out ADD VIEW place KEY (k)", "no collection 'place'; did you mean 'places'", 36),
        ("ALTER MATERIALIZATION out ADD VIEW places", "'places' has no key that can be inferred", 36),
        ("ALTER MATERIALIZATION out ADD VIEW places KEY (y)", "no column 'y'", 36),
        ("ALTER MATERIALIZATION out ADD VIEW places TO orders KEY (k)", "resources 'Orders' and 'orders' are", None),
        ("ALTER MATERIALIZATION out ADD VIEW IF NOT EXISTS p", "ADD VIEW IF NOT EXISTS is not supported", 36),
        ("ALTER MATERIALIZATION out DROP VIEW IF EXISTS p", "DROP VIEW IF EXISTS is not supported", 37),
        ("ALTER MATERIALIZATION out DROP VIEW places", "no view of materialization 'Out', 'places'", 37),
        ("ALTER MATERIALIZATION out DROP VIEW orders, DROP VIEW orders", "'Out' has no view 'orders' any longer", 55),
        ("ALTER MATERIALIZATION out DROP VIEW orders, DROP VIEW people", "'Out' would have no view; DROP MAT", 23),
        ("ALTER MATERIALIZATION out DROP VIEW orders KEEP", "the end of the statement", 44),
        ("ALTER MATERIALIZATION out DROP orders", "ADD VIEW or DROP VIEW", 27),
        ("ALTER MATERIALIZATION out ADD VIEW places KEY (k), SET (splits 2)", "ADD VIEW or DROP VIEW", 52),
        ("ALTER MATERIALIZATION nowhere DROP VIEW orders", "nowhere", 23),
    ],
)
def test_what_cannot_be_changed_is_refused_with_its_place(
    place: Place, text: str, message: str, column: int | None
) -> None:
    """Damage: half of a statement is done, or a typing error drops what is there."""

    async def body() -> None:
        core = await place.filled()
        before = core.catalog
        with pytest.raises(DefinitionError, match=message) as refused:
            await altered(core, text)
        if column is not None:
            assert refused.value.position == Position(1, column)
        assert core.catalog == before
        await place.grown(core)

    asyncio.run(body())


class DiedError(BaseException):
    """The process ended."""


@pytest.mark.parametrize("when", ["before the catalog", "after the catalog", "before the commit", "after the commit"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_process_that_dies_in_the_middle_leaves_all_or_nothing(
    tmp_path: Path, splits: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a view is lost between two sets of views, rows come twice, or a table is emptied that stays."""

    def dies(before: bool, call: Any) -> Any:
        async def dying(*args: Any, **named: Any) -> Any:
            if not before:
                await call(*args, **named)
            raise DiedError

        return dying

    async def body() -> None:
        place = Place(tmp_path, splits)
        core = await place.filled()
        before, commit = when.startswith("before"), SqlSession._commit
        text = "ALTER MATERIALIZATION out DROP VIEW people REMOVE ROWS, ADD VIEW places KEY (k)"
        with monkeypatch.context() as patched:
            if when.endswith("catalog"):
                patched.setattr(core.catalogs, "change", dies(before, core.catalogs.change))
            with pytest.raises(DiedError):
                await altered(core, text)
                patched.setattr(SqlSession, "_commit", dies(before, commit))
                await place.insert(core)
                await core.tick()
        again = await place.open()
        await place.grown(again, 3)
        if when == "before the catalog":
            assert [place.held(name) for name in ("Orders", "People")] == [place.written("orders")] * 2
            return
        counts = [place.held(name) for name in ("Orders", "People", "places")]
        assert counts == [place.written("orders"), 0, place.written("places")]
        assert out(again).left == ()
        assert (await verify_endpoint(again, "out")).ok

    asyncio.run(body())
