"""The writer reports what it is doing, in its own process and in others."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from strandline.controller.asking import status
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Table
from strandline.errors import DefinitionError
from strandline.instance import live
from strandline.instance.tables import Change
from strandline.materialize.status import Moving, Status
from strandline.persist.notices import PushClient
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.registry import driver


class Place:
    """A location in memory."""

    def __init__(self) -> None:
        self.clock = HandClock(1_000)
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()

    async def open(self, mode: Mode = Mode.FULL) -> Core:
        """Open it."""
        assembly = list_assembly(
            self.clock,
            CountingIds(f"in-{mode.value}"),
            self._blob,
            self._consensus,
            drivers=partial(driver, self.clock),
        )
        return await Core.open(assembly, Config(), mode)


class Asked(PushClient):
    """A connection to the process that writes, which has sent its counters."""

    def __init__(self, place: Place, counters: dict[str, int]) -> None:
        super().__init__(Path("nowhere"), place.clock, CountingIds("push"))
        self._told = counters

    async def connect(self) -> bool:
        """Be welcome."""
        self.counters = self._told
        return True


async def filled(place: Place) -> Core:
    """Return a core with the table ``orders`` and the view ``ones``; three rows were inserted at two ticks."""
    core = await place.open()
    await definitions.add(core, Table("orders", (("k", "bigint"), ("x", "string")), "shard-orders"))
    await define(core, "CREATE MATERIALIZED VIEW Ones AS SELECT o.k AS k, o.x AS x FROM orders o WHERE o.k = 1")
    for rows in ([(1, "a"), (2, "b")], [(1, "c")]):
        table = core.table("orders")
        frame = updates(table.schema, [{"k": k, "x": x, "__time": 0} for k, x in rows])
        await core.commit([Change(table, frame, False, len(rows))], None)
        await core.tick()
    assert core.health.problems() == {}
    return core


async def define(core: Core, sql: str) -> None:
    """Run a CREATE."""
    statement = parse(sql)
    kind = type(statement).__name__
    create = {
        "CreateView": definitions.create_view,
        "CreateMaterialization": definitions.create_materialization,
    }[kind]
    await create(core, cast("Any", statement))


def test_status_counts_what_the_sinks_of_a_view_did() -> None:
    """Damage: a view that is corrected at every step, or appended to without end, looks like one that rests."""

    async def body() -> None:
        place = Place()
        core = await filled(place)
        sent = (await status.status(core))["collections"]
        assert sent["Ones"]["sink"]["rows"] == 2
        assert sent["Ones"]["sink"]["appends"] >= 2
        assert sent["Ones"]["sink"]["conflicts"] == 0
        assert "sink" not in sent["orders"]
        core.client.notifier = Asked(place, core._metrics())
        core.writing = None
        others = await status.status(core)
        assert others["collections"]["Ones"]["sink"] == sent["Ones"]["sink"], "another process reads the same"
        assert others["writer_persist"] == core.client.metrics.counts(), "and persist's counters are persist's alone"

    asyncio.run(body())


def test_status_shows_how_far_a_transaction_is_while_it_goes_on(tmp_path: Path) -> None:
    """Damage: a first sync of an hour looks like one that hangs."""

    async def body() -> None:
        place = Place()
        core = await filled(place)
        path = tmp_path / "out.duckdb"
        await define(core, f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{path}') AS orders KEY (k, x)")
        seen: list[tuple[str, dict[str, int]]] = []

        def watch(status: Status) -> None:
            seen.append((status.phase, live.of(live.sendable(core.live()), live.MOVING, "out")))

        core.require_writing().instance.watch = watch
        await core.tick()
        assert core.health.problems() == {}
        assert ("Extending", {"read": 2, "about": 3, "sent": 0}) in seen
        assert seen[-1] == ("Storing", {"read": 3, "about": 3, "sent": 3})
        assert (await status.status(core))["materializations"]["out"]["moving"] == {"read": 0, "about": 0, "sent": 0}
        core.client.notifier = Asked(place, {"moving/out/read": 7, "moving/out/about": 9, "moving/out/sent": 0})
        core.writing = None
        sent = (await status.status(core))["materializations"]["out"]["moving"]
        assert Moving(**sent) == Moving(read=7, about=9)

    asyncio.run(body())


def test_counters_of_many_views_do_not_break_the_connection() -> None:
    """Damage: with a thousand views readers no longer receive notices of new versions."""
    many = {f"sink/{'v' * 50}{n}/{field}": n for n in range(5_000) for field in ("rows", "appends")}
    sent = live.sendable(many)
    assert 0 < sum(len(name) for name in sent) <= live.SENT_BYTES_MAX
    assert list(sent.items()) == list(many.items())[: len(sent)]
    assert live.sendable(dict(list(many.items())[:10])) == dict(list(many.items())[:10])


@pytest.mark.parametrize(
    ("bindings", "said"),
    [
        ("orders TO strandline_checkpoints KEY (k)", "driver keeps its checkpoints there"),
        ("orders TO t KEY (k), Ones TO T KEY (k)", "are one"),
    ],
)
def test_what_the_endpoint_cannot_hold_is_refused_at_create(tmp_path: Path, bindings: str, said: str) -> None:
    """Damage: CREATE succeeds, and the item stands there with a problem until a person drops it."""

    async def body() -> None:
        core = await filled(Place())
        with pytest.raises(DefinitionError, match=said):
            await define(core, f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{tmp_path}/f') AS {bindings}")
        assert core.catalog.find("out") is None

    asyncio.run(body())
