"""ALTER MATERIALIZATION: over the real core and a SQLite file, without Spark."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.controller.asking.status import status
from strandline.controller.asking.verification import verify_endpoint
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.altering import alter_materialization
from strandline.controller.language.altering import AlterMaterialization
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import CreateMaterialization, parse
from strandline.controller.location import on_error
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Table
from strandline.errors import DefinitionError, Position, Unavailable
from strandline.instance.tables import Change
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.materialize.protocol.task import Checkpoint
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import driver

ROWS = 40


class Place:
    """A location in memory with one table, and a SQLite file that follows it."""

    def __init__(self, root: Path) -> None:
        self.file = root / "out.sqlite"
        self._clock = HandClock(1_000)
        self._written = 0

    async def filled(self) -> Core:
        clock, drivers = self._clock, partial(driver, self._clock)
        assembly = list_assembly(clock, CountingIds("a"), MemoryBlob(), MemoryConsensus(), drivers=drivers)
        core = await Core.open(assembly, Config(), Mode.FULL)
        await definitions.add(core, Table("orders", (("k", "bigint"), ("x", "string")), "shard-orders"))
        made = CreateMaterialization("Out", "sqlite", {"path": str(self.file)}, (Bind("orders", "o", ("k",)),), False)
        await definitions.create_materialization(core, made)
        await self.grown(core)
        return core

    async def insert(self, core: Core) -> None:
        """Insert rows."""
        rows = [{"k": self._written + n, "x": f"row {n}", "__time": 0} for n in range(ROWS)]
        opened = core.table("orders")
        await core.commit([Change(opened, updates(opened.schema, rows), False, ROWS)], None)
        self._written += ROWS
        self._clock.now += 1_000

    async def grown(self, core: Core) -> None:
        """Insert rows, tick, and compare."""
        await self.insert(core)
        await core.tick()
        assert core.health.problems() == {}
        with closing(sqlite3.connect(self.file)) as inner:
            assert inner.execute('SELECT count(*), count(DISTINCT k) FROM "o"').fetchone() == (self._written,) * 2


async def said(core: Core) -> dict[str, Any]:
    """Return what the status says of the task."""
    found: dict[str, Any] = (await status(core))["materializations"]["Out"]
    return found


async def altered(core: Core, text: str) -> None:
    """Run a statement."""
    statement = parse(text)
    assert isinstance(statement, AlterMaterialization)
    await alter_materialization(core, statement)


def test_a_task_gets_splits_and_loses_them_while_it_goes_on(tmp_path: Path) -> None:
    """Damage: an operator who wants more sessions drops the materialization and fills the endpoint from the start."""

    async def body() -> None:
        place = Place(tmp_path)
        core = await place.filled()
        assert "splits" not in await said(core)
        await altered(core, "ALTER MATERIALIZATION OUT SET (splits = 4, every '1 ms')")
        await place.grown(core)
        await place.grown(core)
        found = await said(core)
        assert len(found["splits"]) == 4
        assert set(found["splits"].values()) == {found["position"]}
        assert (await verify_endpoint(core, "out")).ok
        await altered(core, "alter materialization out set (splits 1)")
        await place.grown(core)
        assert "splits" not in await said(core)
        assert core.catalog.items["out"].options == {"path": str(place.file), "splits": "1", "every": "1 ms"}

    asyncio.run(body())


def test_splits_that_are_at_different_times_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator is shown differences that are none, because one split was ahead of another."""
    commit = SqlSession._commit

    async def fails(self: SqlSession, checkpoint: Checkpoint) -> None:
        assert self._held is not None
        if self._held.range.begin == 0:
            raise Unavailable("the endpoint is gone")
        await commit(self, checkpoint)

    async def body() -> None:
        place = Place(tmp_path)
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out SET (splits 2)")
        await place.grown(core)
        with monkeypatch.context() as patched:
            patched.setattr(SqlSession, "_commit", fails)
            await place.insert(core)
            await core.tick()
            with pytest.raises(Unavailable, match="a transaction of materialization 'Out' is being committed"):
                await verify_endpoint(core, "out")
        await place.grown(core)
        assert (await verify_endpoint(core, "out")).ok

    asyncio.run(body())


def test_what_was_set_is_taken_back(tmp_path: Path) -> None:
    """Damage: an endpoint that once got a window keeps one for ever, unless it is filled anew."""

    async def body() -> None:
        place = Place(tmp_path)
        core = await place.filled()
        await altered(core, "ALTER MATERIALIZATION out SET (within '00:00-00:01 sun UTC', every '1 day', splits 2)")
        assert core.catalog.items["out"].scheduled
        await altered(core, "ALTER MATERIALIZATION Out RESET (within, Every, trigger)")
        assert core.catalog.items["out"].options == {"path": str(place.file), "splits": "2"}
        await place.grown(core)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("ALTER MATERIALIZATION out SET (splits 0)", "can have 1 to 64 splits, not 0", 23),
        ("ALTER MATERIALIZATION out SET (splits many)", "splits", 23),
        ("ALTER MATERIALIZATION out SET (splits 2, path '/x')", "option 'path' cannot be altered, only every, on", 42),
        ("ALTER MATERIALIZATION out SET (delta true)", "option 'delta' cannot be altered", 32),
        ("ALTER MATERIALIZATION nowhere SET (splits 2)", "nowhere", 23),
        ("ALTER MATERIALIZATION out SET ()", "an option between the brackets", None),
        ("ALTER MATERIALIZATION out (splits 2)", "SET or RESET", 27),
        ("ALTER MATERIALIZATION out RESET ()", "an option between the brackets", None),
        ("ALTER MATERIALIZATION out RESET (every, every)", "option 'every' is given twice", 41),
        ("ALTER MATERIALIZATION out RESET (every '1 s')", "expected names of options alone", 40),
        ("ALTER MATERIALIZATION out RESET (splits, path)", "option 'path' cannot be altered", 42),
        ("ALTER MATERIALIZATION nowhere RESET (splits)", "nowhere", 23),
        ("ALTER VIEW orders SET (splits 2)", "are altered", 1),
    ],
)
def test_what_cannot_be_altered_is_refused_with_its_place(
    text: str, message: str, column: int | None, tmp_path: Path
) -> None:
    """Damage: an option is altered that no one reads, or the endpoint's tables no longer are what they say."""

    async def body() -> None:
        place = Place(tmp_path)
        core = await place.filled()
        with pytest.raises(DefinitionError, match=message) as refused:
            await altered(core, text)
        if column is not None:
            assert refused.value.position == Position(1, column)
        assert core.catalog.items["out"].options == {"path": str(place.file)}
        await place.grown(core)

    asyncio.run(body())


def test_what_can_be_altered_is_no_option_of_an_endpoint() -> None:
    """Damage: an endpoint changes under the rows that it was given."""
    assert set(on_error.ALTERABLE) < on_error.names(on_error.MaterializationOptions)
