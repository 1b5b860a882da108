"""`verify` of a table whose rows are reduced: over the real core and a real SQLite file, no Spark."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.controller.asking.verification import verify_endpoint
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import CreateMaterialization
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Table
from strandline.errors import DefinitionError, InvalidUsage
from strandline.instance.tables import Change
from strandline.materialize.reduced import Whole
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import driver

SUM = {"reduce": {"strategy": "merge"}, "properties": {"n": {"type": "integer", "reduce": {"strategy": "sum"}}}}
SUM_OF = {**SUM, "properties": {**SUM["properties"], "x": {"reduce": {"strategy": "maximize"}}}}  # type: ignore[dict-item]
Body = Callable[["Place"], Awaitable[None]]


class Place:
    """A location in memory with one table, and a materialization that reduces it into a SQLite file."""

    def __init__(self, file: Path, schema: dict[str, Any]) -> None:
        self.file = file
        self._schema = schema
        self._clock = HandClock(1_000)
        self.core: Core

    async def open(self) -> None:
        """Define the table."""
        drivers: Any = partial(driver, self._clock)
        assembly = list_assembly(self._clock, CountingIds("p"), MemoryBlob(), MemoryConsensus(), drivers=drivers)
        self.core = await Core.open(assembly, Config(take_over=True), Mode.FULL)
        columns = (("k", "bigint"), ("n", "bigint"), ("x", "string"))
        await definitions.add(self.core, Table("orders", columns, "shard-orders"))

    async def materialize(self) -> None:
        """Define the materialization."""
        options = {"path": str(self.file), "reduce": json.dumps(self._schema)}
        made = CreateMaterialization("Out", "sqlite", options, (Bind("orders", "o", ("k",)),), False)
        await definitions.create_materialization(self.core, made)

    async def write(self, *rows: tuple[int, int, str], diff: int = 1) -> None:
        """Insert rows, or delete them, in one transaction; and tick."""
        opened = self.core.table("orders")
        given = [{"k": k, "n": n, "x": x, "__time": 0, "__diff": diff} for k, n, x in rows]
        await self.core.commit([Change(opened, updates(opened.schema, given), False, len(given))], None)
        self._clock.now += 1_000
        await self.core.tick()
        assert self.core.health.problems() == {}

    def stored(self) -> list[tuple[Any, ...]]:
        """Return the table's rows."""
        with closing(sqlite3.connect(self.file)) as inner:
            return inner.execute('SELECT k, n, x FROM "o" ORDER BY k').fetchall()

    def spoil(self) -> None:
        """Change a row at the endpoint."""
        with closing(sqlite3.connect(self.file)) as inner:
            inner.execute('UPDATE "o" SET n = n + 1 WHERE k = 1')
            inner.commit()


def at(file: Path, schema: dict[str, Any], body: Body) -> None:
    """Do something at a place."""

    async def opened() -> None:
        place = Place(file, schema)
        await place.open()
        await body(place)
        await place.core.close()

    asyncio.run(opened())


def test_a_correct_table_is_equal_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    """Damage: `verify` calls every sum wrong, so no one looks when one is."""

    async def body(place: Place) -> None:
        await place.materialize()
        await place.write((1, 4, "a"), (1, 5, "b"), (2, 7, "c"))
        await place.write((1, 1, "c"))
        assert place.stored() == [(1, 10, "c"), (2, 7, "c")]
        assert (await verify_endpoint(place.core, "out")).ok
        place.spoil()
        found = await verify_endpoint(place.core, "out")
        assert (found.missing, found.extra) == (1, 1), str(found)

    at(tmp_path / "out.sqlite", SUM_OF, body)


def test_a_table_that_began_after_a_row_was_removed_is_equal(tmp_path: Path) -> None:
    """Damage: one deleted row keeps a sum from ever being built, or `verify` from ever being right."""

    async def body(place: Place) -> None:
        await place.write((1, 4, "a"), (2, 5, "b"), (3, 6, "c"))
        await place.write((2, 5, "b"), diff=-1)
        await place.materialize()
        await place.write((3, 1, "d"))
        assert place.stored() == [(1, 4, "a"), (3, 7, "d")]
        assert (await verify_endpoint(place.core, "out")).ok

    at(tmp_path / "out.sqlite", SUM, body)


def test_rows_whose_order_is_gone_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after compaction `verify` says that a correct table is wrong, and someone "repairs" it."""

    async def body(place: Place) -> None:
        await place.materialize()
        await place.write((1, 4, "z"))
        await place.write((1, 5, "a"))
        assert place.stored() == [(1, 9, "a")]
        assert (await verify_endpoint(place.core, "out")).ok
        place.spoil()
        assert not (await verify_endpoint(place.core, "out")).ok
        begin = Whole.__init__
        monkeypatch.setattr(Whole, "__init__", lambda self, rows, _since: begin(self, rows, 1_000_000))
        with pytest.raises(InvalidUsage, match="depends on the order of the rows, which compaction has removed"):
            await verify_endpoint(place.core, "out")

    at(tmp_path / "out.sqlite", SUM, body)


def test_a_reduction_of_a_column_that_is_not_there_is_not_defined(tmp_path: Path) -> None:
    """Damage: a mistyped column is not summed, and nothing says so."""

    async def body(place: Place) -> None:
        with pytest.raises(DefinitionError, match="no column 'm'"):
            await place.materialize()
        assert "out" not in place.core.catalog.items

    at(tmp_path / "out.sqlite", {**SUM, "properties": {"m": {"reduce": {"strategy": "sum"}}}}, body)
