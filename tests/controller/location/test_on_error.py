"""Errors above compute: reads refuse, endpoints wait or continue, `status` counts.  Over lists, without Spark."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from strandline.controller.asking import reads, status
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Materialization, Table
from strandline.errors import CollectionError, DefinitionError
from strandline.instance.tables import Change
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed, updates
from strandline.wiring.registry import driver

QUOTIENTS = "CREATE MATERIALIZED VIEW q AS SELECT t.k AS k, 12 DIV t.n AS x FROM t"
ABOVE = "CREATE MATERIALIZED VIEW above AS SELECT q.k AS k FROM q"


async def define(core: Core, sql: str) -> None:
    """Run a CREATE of a view or a materialization."""
    statement: Any = parse(sql)
    is_view = type(statement).__name__ == "CreateView"
    await (definitions.create_view if is_view else definitions.create_materialization)(core, statement)


async def change(core: Core, rows: Sequence[tuple[int, int]], *, deletes: bool = False) -> int:
    """Insert or delete rows of ``t``, and tick; return the time of the change."""
    table = core.table("t")
    frame = updates(table.schema, [{"k": k, "n": n, "__time": 0, "__diff": -1 if deletes else 1} for k, n in rows])
    time = await core.commit([Change(table, frame, deletes, len(rows))], None)
    await core.tick()
    return time


async def opened() -> Core:
    """Return a core in memory with the table ``t`` and two views."""
    blob, clock = MemoryBlob(), HandClock(1_000)
    assembly = list_assembly(clock, CountingIds("p"), blob, MemoryConsensus(), drivers=partial(driver, clock))
    core = await Core.open(assembly, Config(), Mode.FULL)
    await definitions.add(core, Table("t", (("k", "bigint"), ("n", "bigint")), "shard-t"))
    await define(core, QUOTIENTS)
    await define(core, ABOVE)
    await change(core, [(1, 1), (2, 2)])
    return core


def stored(path: Path) -> list[tuple[Any, ...]]:
    """Return what the endpoint holds."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return sorted(connection.execute("SELECT * FROM q").fetchall())


async def read(core: Core, name: str, time: int) -> int:
    """Return how many rows a collection has at ``time``."""
    rows = await reads.snapshot(core, await core.readers.of(name), time, Hold())
    return sum(row["__diff"] for row in listed(rows).rows)


def test_a_read_of_what_has_errors_says_which_how_many_and_since_when() -> None:
    """Damage: rows that fail are missing from answers without any message, or the past cannot be read either."""

    async def body() -> None:
        core = await opened()
        began = await change(core, [(3, 0), (4, 0)])
        last = await change(core, [(5, 5)])
        for name in ("q", "above"):
            for time in (began, last):
                with pytest.raises(CollectionError) as caught:
                    await read(core, name, time)
                assert caught.value.since == began
                assert [error["row"] for error in caught.value.errors] == [{"k": 3, "n": 0}, {"k": 4, "n": 0}]
                assert f"{name!r} has 2 errors at {time}, since {began}: " in str(caught.value)
                assert "12 DIV" in str(caught.value)
                again = copy.copy(caught.value)  # as it crosses processes
                assert (str(again), again.since) == (str(caught.value), began)
            assert await read(core, name, began - 1) == 2
            with pytest.raises(CollectionError):
                await reads.refuse_changes(core, await core.readers.of(name), 1, last)
            await reads.refuse_changes(core, await core.readers.of(name), 1, began)
            found = (await status.status(core))["collections"][name]
            assert (found["errors"]["rows"], found["errors"]["since"], found["problem"]) == (2, began, None)
        healed = await change(core, [(3, 0), (4, 0)], deletes=True)
        assert await read(core, "above", healed) == 3
        assert (await status.status(core))["collections"]["q"]["errors"] == {"rows": 0, "first": [], "since": None}
        with pytest.raises(CollectionError):
            await reads.refuse_changes(core, await core.readers.of("q"), last, healed + 1)
        await reads.refuse_changes(core, await core.readers.of("q"), healed, healed + 1)

    asyncio.run(body())


def test_a_materialization_waits_at_the_last_time_without_errors_and_says_so(tmp_path: Path) -> None:
    """Damage: an endpoint is given half a view, or stands still without saying why."""

    async def body() -> None:
        core, path = await opened(), tmp_path / "out.duckdb"
        await define(core, f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{path}') AS q KEY (k)")
        await change(core, [(3, 4)])
        began = await change(core, [(4, 0), (5, 5)])
        await change(core, [(6, 6)])
        assert stored(path) == [(1, 12), (2, 6), (3, 3)]
        found = (await status.status(core))["materializations"]["out"]
        assert found["position"] == began
        assert f"'q' has errors since {began}" in found["problem"]
        await change(core, [(4, 0)], deletes=True)
        assert stored(path) == [(1, 12), (2, 6), (3, 3), (5, 2), (6, 2)]
        assert not (await status.status(core))["materializations"]["out"]["problem"]

    asyncio.run(body())


def test_a_materialization_of_what_has_had_errors_from_its_start_waits_for_the_first_good_time(tmp_path: Path) -> None:
    """Damage: a new endpoint over a view with errors fails with a message about history."""

    async def body() -> None:
        core, path = await opened(), tmp_path / "out.duckdb"
        await change(core, [(4, 0)])
        await define(core, "CREATE MATERIALIZED VIEW late AS SELECT t.k AS k, 12 DIV t.n AS x FROM t")
        await core.tick()
        await define(core, f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{path}') AS late TO q KEY (k)")
        await core.tick()
        assert "'late' has errors since" in core.health.problems()["out"]
        await change(core, [(4, 0)], deletes=True)
        assert stored(path) == [(1, 12), (2, 6)]
        assert not core.health.problems()

    asyncio.run(body())


def test_a_materialization_may_continue_with_the_good_rows(tmp_path: Path) -> None:
    """Damage: one bad row stops a pipeline whose owner would rather have all others."""

    async def body() -> None:
        core, path = await opened(), tmp_path / "out.duckdb"
        options = f"(path '{path}', on_error 'continue')"
        await define(core, f"CREATE MATERIALIZATION out INTO duckdb OPTIONS {options} AS q KEY (k)")
        await change(core, [(4, 0), (5, 5)])
        assert stored(path) == [(1, 12), (2, 6), (5, 2)]
        assert not core.health.problems()
        item = core.catalog.find("out")
        assert isinstance(item, Materialization)
        assert item.endpoint_options == {"path": str(path)}
        with pytest.raises(DefinitionError, match="option 'on_error' is 'never': it can be wait, continue"):
            await define(
                core, f"CREATE MATERIALIZATION o INTO duckdb OPTIONS (path '{path}', on_error 'never') AS q KEY (k)"
            )

    asyncio.run(body())
