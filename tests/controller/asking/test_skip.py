"""Undecodable records: the operator dismisses what they saw, once, and all above the source heals.  Over lists."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest

from strandline.controller.asking import reads
from strandline.controller.asking.skip import skip
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.sources import retry
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Source
from strandline.errors import CollectionError, DefinitionError, InvalidUsage, Unavailable
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream, Withdrawn, undecodable
from strandline.wiring.registry import driver

VIEW = "CREATE MATERIALIZED VIEW v AS SELECT s.offset AS k, s.value AS x FROM s"


class Place:
    """A location in memory with a source ``s`` of one upstream, a view ``v`` over it, and an endpoint of that."""

    def __init__(self) -> None:
        self.blob, self.consensus, self.clock = MemoryBlob(), MemoryConsensus(), HandClock(1_000)
        self.upstream, self.opened = Upstream(retracts=True), 0

    async def open(self, mode: Mode = Mode.FULL) -> Core:
        """Open it as a fresh process would."""
        self.opened += 1
        assembly = list_assembly(
            self.clock,
            CountingIds(f"p{self.opened}"),
            self.blob,
            self.consensus,
            connectors=self,
            drivers=partial(driver, self.clock),
        )
        return await Core.open(assembly, Config(), mode)

    async def reader(self, *_: object) -> ListReader:
        """See `Connectors.reader`."""
        return ListReader(self.upstream)

    async def defined(self, path: Path | None = None) -> Core:
        """Open it, with the items defined; ``path``: of the endpoint."""
        core = await self.open()
        columns = tuple((column.name, column.type) for column in SCHEMA)
        await definitions.add(core, Source("s", columns, "data", "list", {}, remap="remap", progress="progress"))
        await definitions.create_view(core, cast("Any", parse(VIEW)))
        if path is not None:
            sql = f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{path}') AS v KEY (k)"
            await definitions.create_materialization(core, cast("Any", parse(sql)))
        return core


async def read(core: Core, name: str, time: int | None = None) -> list[int]:
    """Return the values that a collection has at ``time`` (None: the latest)."""
    reader = await core.readers.of(name)
    at = await reads.latest(core, [reader]) if time is None else time
    rows = listed(await core.engine.multiset(await reads.snapshot(core, reader, at, Hold()))).rows
    return sorted(row["x" if name == "v" else "value"] for row in rows)


def test_what_the_operator_dismisses_heals_the_source_its_views_and_its_endpoints(tmp_path: Path) -> None:
    """Damage: one bad record that its upstream never takes back stops all that is above it for ever."""

    async def body() -> None:
        place = Place()
        core, path = await place.defined(tmp_path / "out.duckdb"), tmp_path / "out.duckdb"
        place.upstream.produce("0", 10, None, None)
        began = await core.tick()
        told = await skip(core, "S", None, apply=False)
        assert (told["source"], told["as_of"], told["rows"], told["since"]) == ("s", began, 2, began)
        assert (told["applied"], told["dismissed_at"]) == (False, None)
        with pytest.raises(CollectionError):
            await read(core, "s")
        done = await skip(core, "s", began, apply=True)
        assert done["rows"] == 2
        assert await read(core, "s") == [10]
        healed = await core.tick()
        assert await read(core, "v") == [10]
        with duckdb.connect(str(path), read_only=True) as connection:
            assert connection.execute("SELECT k, x FROM v").fetchall() == [(0, 10)]
        assert not core.health.problems()
        for time in (began, done["dismissed_at"] - 1):
            with pytest.raises(CollectionError):
                await read(core, "s", time)
        assert began < done["dismissed_at"] < healed

    asyncio.run(body())


def test_to_dismiss_twice_is_to_dismiss_once() -> None:
    """Damage: a command that is repeated because its answer was lost makes the error half negative."""

    async def body() -> None:
        place = Place()
        core = await place.defined()
        place.upstream.produce("0", 10, None)
        began = await core.tick()
        assert (await skip(core, "s", None, apply=True))["rows"] == 1
        for as_of in (None, began):
            assert (await skip(core, "s", as_of, apply=True))["dismissed_at"] is None
        await core.close()
        again = await place.open()
        assert (await skip(again, "s", None, apply=True))["rows"] == 0
        await again.tick()
        assert await read(again, "v") == [10]

    asyncio.run(body())


def test_an_error_that_the_operator_has_not_seen_stays() -> None:
    """Damage: a record that came between the look and the command is passed over unseen."""

    async def body() -> None:
        place = Place()
        core = await place.defined()
        place.upstream.produce("0", None)
        seen = await core.tick()
        place.upstream.produce("0", None)
        await core.tick()
        assert (await skip(core, "s", seen, apply=True))["rows"] == 1
        left = await skip(core, "s", None, apply=False)
        assert (left["rows"], left["first"]) == (1, [json.loads(undecodable("0", 1))])
        place.upstream.produce("0", Withdrawn(1, None))
        await core.tick()
        assert await read(core, "s") == []

    asyncio.run(body())


def test_errors_of_which_some_have_left_since_the_look_are_looked_at_again() -> None:
    """Damage: an error that upstream took back meanwhile is withdrawn twice, and the error half is negative."""

    async def body() -> None:
        place = Place()
        core = await place.defined()
        place.upstream.produce("0", None, None)
        seen = await core.tick()
        place.upstream.produce("0", Withdrawn(0, None))
        await core.tick()
        with pytest.raises(InvalidUsage, match=f"some errors that 's' had at {seen} were withdrawn since"):
            await skip(core, "s", seen, apply=True)
        assert (await skip(core, "s", None, apply=True))["rows"] == 1
        assert await read(core, "s") == []

    asyncio.run(body())


def test_nothing_is_dismissed_where_it_cannot_be_known_what_is_there() -> None:
    """Damage: a source that stands still, or an environment that only reads, seems to have done what it was asked."""

    async def body() -> None:
        place = Place()
        core = await place.defined()
        place.upstream.produce("0", None)
        await core.tick()
        place.upstream.produce("0", 1)
        await core.ingest(step=False)
        place.upstream.down = True
        with pytest.raises(Unavailable, match="does not answer"):
            await skip(core, "s", None, apply=True)
        assert (await skip(core, "s", None, apply=False))["rows"] == 1
        with pytest.raises(InvalidUsage, match="read-only"):
            await skip(await place.open(Mode.READ), "s", None, apply=True)
        with pytest.raises(DefinitionError, match="'v'"):
            await skip(core, "v", None, apply=True)

    asyncio.run(body())


class Stale(Place):
    """Its first reader has a connection that never answers; a reader that is opened later has another one."""

    async def reader(self, *_: object) -> ListReader:
        """See `Connectors.reader`."""
        first, self.first = self.first, False
        return ListReader(Upstream(down=True)) if first else ListReader(self.upstream)

    first = True


def test_a_source_is_opened_anew_where_its_reader_is_stuck() -> None:
    """Damage: an upstream that was mended is not read until `strandline run` is started again."""

    async def body() -> None:
        place = Stale()
        core = await place.defined()
        place.upstream.produce("0", 10)
        for _ in range(2):
            await core.tick()
        assert "s" in core.health.problems()
        assert await retry(core, "S") == "s"
        await core.tick()
        assert not core.health.problems()
        assert await read(core, "s") == [10]
        with pytest.raises(DefinitionError, match="there is no source 'v'"):
            await retry(core, "v")

    asyncio.run(body())
