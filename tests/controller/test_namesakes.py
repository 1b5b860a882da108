"""Two locations whose materializations share a name and an endpoint: over the real core and a SQLite file, no Spark."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import CreateMaterialization, Drop
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Table
from strandline.instance.tables import Change
from strandline.persist.handles.location import Pair, agree
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import driver


class Place:
    """A location with one table, ``orders``."""

    def __init__(self, name: str, file: Path) -> None:
        self.clock, self.ids = HandClock(1_000), CountingIds(name)
        self.file = file

    async def open(self) -> Core:
        """Open it for the first time."""
        blob, consensus = MemoryBlob(), MemoryConsensus()
        await agree(Pair(blob, consensus, "b", "c"), self.clock, self.ids, writes=True)
        drivers = partial(driver, self.clock)
        core = await Core.open(
            list_assembly(self.clock, self.ids, blob, consensus, drivers=drivers), Config(), Mode.FULL
        )
        await definitions.add(core, Table("orders", (("k", "bigint"),), "shard-orders"))
        await self.materialize(core)
        return core

    async def materialize(self, core: Core) -> None:
        """Define the materialization."""
        bound = (Bind("orders", "o", ("k",)),)
        made = CreateMaterialization("Out", "sqlite", {"path": str(self.file)}, bound, False)
        await definitions.create_materialization(core, made)

    async def insert(self, core: Core, k: int) -> str:
        """Insert a row, and tick; return the problem of the materialization."""
        opened = core.table("orders")
        await core.commit([Change(opened, updates(opened.schema, [{"k": k, "__time": 0}]), False, 1)], None)
        self.clock.now += 1_000
        await core.tick()
        return "".join(core.health.problems().values())

    def rows(self) -> list[int]:
        """Return what is in the table of the endpoint."""
        with closing(sqlite3.connect(self.file)) as inner:
            return sorted(k for (k,) in inner.execute('SELECT k FROM "o"'))


def test_the_second_location_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """Damage: two installations wipe each other's table in turn, and neither says so."""

    async def body() -> None:
        file = tmp_path / "out.sqlite"
        first, second = Place("one", file), Place("two", file)
        here = await first.open()
        assert await first.insert(here, 1) == ""
        there = await second.open()
        assert "'o' is filled by materialization 'Out' of another location" in await second.insert(there, 11)
        assert await first.insert(here, 2) == ""
        assert first.rows() == [1, 2]

    asyncio.run(body())


def test_who_creates_a_materialization_again_has_its_table_filled_again(tmp_path: Path) -> None:
    """Damage: a location's own earlier materialization counts as another installation's."""

    async def body() -> None:
        place = Place("one", tmp_path / "out.sqlite")
        core = await place.open()
        assert await place.insert(core, 1) == ""
        await definitions.drop(core, Drop("materialization", "Out", if_exists=False))
        await place.materialize(core)
        assert await place.insert(core, 2) == ""
        assert place.rows() == [1, 2]

    asyncio.run(body())
