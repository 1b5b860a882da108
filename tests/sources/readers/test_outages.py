"""An upstream goes away for a while under an environment that ticks: what is said meanwhile, and what is there after.

The environment is a whole one, over lists instead of Spark; broker and database are real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final, cast

import pytest

from kafka_server import PASSWORD, USER, KafkaServer
from postgres_server import PostgresServer
from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.store.clock import SystemClock
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_messages import ListMessages
from strandline.wiring.loop import RunningTask, side_by_side
from strandline.wiring.registry import Readers

pytestmark = [pytest.mark.server, pytest.mark.hasty, pytest.mark.time_limit(900)]

SHORT_S: Final = 10
LONG_S: Final = 300
BACK_S_MAX: Final = 240
"""How long it may take, on a machine that does other things too, until all is read that upstream has."""
BUSY_MAX: Final = 0.5
"""The part of a processor that may be used while nothing can be done but to ask again."""
UNANSWERED: Final = "its upstream has not answered since"
INTERVAL_S: Final = Config().tick_ms / 1000
BUSY_S_MAX: Final = 3.0
"""How long a tick takes besides, on a machine that does other things too; one that is held up may take longer."""
lengths = pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.slow)])
names = count()


class Site:
    """An environment with a source of numbers that needs no upstream, and what a source is expected to hold."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.took: list[float] = []

    async def open(self, *statements: str) -> Core:
        """Open it, with the sources that the statements define."""
        assembly = list_assembly(self.clock, CountingIds(), MemoryBlob(), MemoryConsensus())
        nothing = cast("Any", None)
        readers = Readers(self.clock, assembly.engine, nothing, ListMessages())
        beside = partial(RunningTask, self.clock)
        assembly = replace(assembly, connectors=readers, together=side_by_side, beside=beside)
        self.core = await Core.open(assembly, Config(), Mode.FULL)
        for text in ("CREATE SOURCE healthy (n BIGINT) FROM COUNTER (every = '100ms')", *statements):
            await self.define(text)
        return self.core

    async def define(self, text: str) -> None:
        """Run a definition."""
        await create(self.core, cast("Any", parse(text)))

    async def tick(self) -> dict[str, str]:
        """Tick, about once a second; return what is wrong."""
        began = time.monotonic()
        await self.core.tick()
        self.took.append(time.monotonic() - began)
        await self.clock.sleep(max(0.0, 1 - (time.monotonic() - began)))
        return self.core.health.problems()

    async def ids(self, name: str) -> list[int]:
        """Return the ids that a collection holds."""
        handle = await self.core.readers.of(name)
        rows = await self.core.engine.multiset(
            await reads.snapshot(self.core, handle, await reads.latest(self.core, [handle]), Hold())
        )
        return sorted(row["id"] for row in listed(rows).rows for _ in range(row.get("__diff", 1)))

    async def well(self, name: str, ids: list[int]) -> None:
        """Tick until nothing is wrong; then the collection holds exactly ``ids``."""
        deadline = time.monotonic() + BACK_S_MAX
        while (problems := await self.tick()) or await self.ids(name) != ids:
            assert time.monotonic() < deadline, (problems, await self.ids(name), ids)

    async def told(self, source: str, said: str) -> dict[str, str]:
        """Tick until the problem of a source says so, and the other source has none; return all problems."""
        deadline = time.monotonic() + BACK_S_MAX
        while said not in (problems := await self.tick()).get(source, "") or "healthy" in problems:
            assert time.monotonic() < deadline, problems
        return problems

    async def through(self, source: str, name: str, seconds: float, said: str, ids: list[int]) -> None:
        """Tick for so long while upstream is away.

        The status says so, no row changes, and the other source goes on: no tick waits longer than an interval.
        """
        self.took.clear()
        began, used, ticks = time.monotonic(), time.process_time(), 0
        before = await self.core.readers.of("healthy")
        upper = before.state.upper
        problems: dict[str, str] = {}
        while time.monotonic() < began + seconds or ticks < 3 or said not in problems[source] or "healthy" in problems:
            assert time.monotonic() < began + seconds + BACK_S_MAX, problems
            problems = await self.tick()
            ticks += 1
            assert said in problems[source] or UNANSWERED in problems[source], problems
            assert await self.ids(name) == ids
        assert upper < (await before.refresh()).upper, "the other source stands still"
        assert median(self.took) < INTERVAL_S + BUSY_S_MAX, self.took
        passed = time.monotonic() - began
        assert time.process_time() - used < BUSY_MAX * passed, "it spins"


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    """Run a test's coroutine; end what it has opened."""

    async def whole() -> None:
        site = Site()
        try:
            await body(site)
        finally:
            await site.core.close()

    asyncio.run(whole())


@pytest.mark.drawn(3)
@lengths
@pytest.mark.parametrize("how", ["stop", "kill", "freeze"])
def test_kafka_is_away_for_a_while(kafka_broker: KafkaServer, how: str, seconds: int) -> None:
    """Damage: an outage costs rows, needs a restart afterwards, burns a processor, or nothing says what is wrong."""
    topic = f"outage-{next(names)}"
    kafka_broker.make_topic(topic, 2)

    def put(*ids: int) -> None:
        for each in ids:
            kafka_broker.produce(topic, [f'{{"id": {each}}}'], partition=each % 2)

    async def body(site: Site) -> None:
        await site.open(
            f"CREATE SOURCE s (id BIGINT) FROM KAFKA (servers = '{kafka_broker.servers}', topic = '{topic}') "
            "FORMAT JSON"
        )
        put(1, 2, 3)
        await site.well("s", [1, 2, 3])
        put(4)
        getattr(kafka_broker, how)()
        await site.through("s", "s", seconds, f"Kafka at {kafka_broker.servers}", [1, 2, 3])
        kafka_broker.thaw()
        kafka_broker.revive()
        put(5, 6)
        await site.well("s", [1, 2, 3, 4, 5, 6])

    run(body)


def test_a_wrong_password_of_kafka_is_said_and_can_be_replaced(kafka_broker: KafkaServer, tmp_path: Any) -> None:
    """Damage: a rotated password stops the environment, or a restart is needed, or the password is shown."""
    topic, given = f"outage-{next(names)}", tmp_path / "password"
    kafka_broker.make_topic(topic, 1)
    kafka_broker.produce(topic, ['{"id": 1}'])
    connection = (
        f"CONNECTION guarded TO KAFKA (servers = '{kafka_broker.guarded}', tls, tls_ca = 'file:"
        f"{kafka_broker.certificate}', sasl = 'scram-sha-256', user = '{USER}', password = 'file:{given}')"
    )

    async def body(site: Site) -> None:
        given.write_text("a wrong one")
        await site.open(
            f"CREATE {connection}",
            f"CREATE SOURCE s (id BIGINT) FROM KAFKA (connection = guarded, topic = '{topic}') FORMAT JSON",
        )
        problems = await site.told("s", "uthentication")
        assert "a wrong one" not in str(problems)
        given.write_text(PASSWORD)
        await site.define(f"CREATE OR REPLACE {connection}")
        await site.well("s", [1])

    run(body)


@pytest.mark.drawn(3)
@lengths
@pytest.mark.parametrize("how", ["fast", "immediate", "freeze"])
def test_postgresql_is_away_for_a_while(postgres_server: PostgresServer, how: str, seconds: int) -> None:
    """Damage: an outage costs rows, needs a restart afterwards, burns a processor, or nothing says what is wrong."""

    async def body(site: Site) -> None:
        place = ", ".join(f"{option} = '{text}'" for option, text in database.options.items())
        await site.open(
            f"CREATE SOURCE bank FROM POSTGRES ({place}, publication = 'p')",
            "CREATE TABLE t (id BIGINT, n STRING) FROM SOURCE bank (REFERENCE 'public.t')",
        )
        database.run("INSERT INTO t VALUES (2, 'two')")
        await site.well("t", [1, 2])
        database.run("INSERT INTO t VALUES (3, 'three')")
        if how == "freeze":
            postgres_server.freeze()
        else:
            database.close()
            postgres_server.stop(how)
        await site.through("bank", "t", seconds, f":{postgres_server.port}/", [1, 2])
        if how == "freeze":
            postgres_server.thaw()
        postgres_server.revive()
        database.run("INSERT INTO t VALUES (4, 'four')", "DELETE FROM t WHERE id = 1")
        await site.well("t", [2, 3, 4])

    with postgres_server.database() as database, ExitStack() as ending:
        ending.callback(postgres_server.revive)
        ending.callback(postgres_server.thaw)
        database.run(
            "CREATE TABLE t (id bigint PRIMARY KEY, n text)",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (1, 'one')",
        )
        run(body)
