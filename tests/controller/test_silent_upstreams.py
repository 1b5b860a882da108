"""An upstream that does not answer holds up its own source alone, and is asked once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from strandline.algebra.schema import DIFF
from strandline.controller.asking.reads import snapshot
from strandline.controller.core import Core
from strandline.controller.defining import creating
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import Unavailable
from strandline.frontier import Offsets
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream
from strandline.wiring.loop import RunningTask, side_by_side

TICK_MS: Final = 1_000
SILENT: Final = "its upstream has not answered since 1970-01-01T00:"


async def others() -> None:
    """Let everything run that can go on."""
    await asyncio.sleep(0)  # noqa: TID251 - no time passes


class PatientClock(HandClock):
    """A clock that passes once everything else that can go on has done so."""

    async def sleep(self, seconds: float) -> None:
        """Let the others run first."""
        for _ in range(100):
            await others()
        await super().sleep(seconds)


@dataclass
class Gate:
    """What upstream's calls wait for; counts those that wait at one time."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    most: int = 0
    asked: int = 0

    async def passed(self) -> None:
        """Wait for the gate to open."""
        self.asked += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.answers.wait()
        finally:
            self.waiting -= 1


class Slow(ListReader):
    """A reader whose upstream answers when its gate is open."""

    def __init__(self, upstream: Upstream, gate: Gate) -> None:
        super().__init__(upstream)
        self.gate = gate
        self.commits = False
        """Whether the gate is that of commits, and not of probes."""

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        if not self.commits:
            await self.gate.passed()
        return await super().upstream_frontier()

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        if self.commits:
            await self.gate.passed()
        await super().commit(resume)


class Site:
    """An environment with two sources: ``slow``, whose upstream has a gate, and ``sound``."""

    def __init__(self) -> None:
        self.clock, self.gate = PatientClock(1_000), Gate()
        self.upstreams = {"slow": Upstream(), "sound": Upstream()}
        for upstream in self.upstreams.values():
            upstream.produce("p", 1, 2)
        self.slow = Slow(self.upstreams["slow"], self.gate)

    def check(self, *_: Any) -> None:
        """Accept it: see `Connectors.check`."""

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    async def ask(self, *_: Any) -> None:
        """The upstream is there."""

    def connections(self, *_: Any) -> dict[str, str]:
        """Use none: see `Connectors.connections`."""
        return {}

    async def reader(self, source: Any, *_: Any) -> ListReader:
        """Open it: see `Connectors.reader`."""
        return self.slow if source.name == "slow" else ListReader(self.upstreams[source.name])

    async def open(self) -> Core:
        """Open the environment."""
        assembly = list_assembly(self.clock, CountingIds(), MemoryBlob(), MemoryConsensus(), connectors=self)
        assembly = replace(assembly, together=side_by_side, beside=partial(RunningTask, self.clock))
        self.core = await Core.open(assembly, Config(tick_ms=TICK_MS), Mode.FULL)
        for name in self.upstreams:
            await creating.create(self.core, parse(f"CREATE SOURCE {name} ({SCHEMA.ddl}) FROM list ()"))
        return self.core

    async def tick(self, *, wait: bool = False) -> int:
        """Tick; return how long that took by the clock."""
        self.clock.now += TICK_MS
        began = self.clock.now
        await self.core.tick(wait=wait)
        return self.clock.now - began

    async def rows(self, name: str) -> list[int]:
        """Return the values that a source has."""
        reader = await self.core.readers.of(name)
        upper = (await reader.refresh()).upper.at
        found = listed(await snapshot(self.core, reader, upper - 1, Hold())).rows if upper else []
        return sorted(row["value"] for row in found for _ in range(row[DIFF]))


def run(body: Callable[[Site], Awaitable[None]]) -> None:
    """Run a test's coroutine over a site; what hangs is ended."""

    async def whole() -> None:
        async with asyncio.timeout(150):
            site = Site()
            await site.open()
            await body(site)
            await site.core.close()

    asyncio.run(whole())


def test_a_probe_is_waited_for_no_longer_than_an_interval_and_its_answer_is_taken_when_it_comes() -> None:
    """Damage: one broker is away, and every tick of every source and view lasts as long as its client's patience."""

    async def body(site: Site) -> None:
        assert await site.tick() == TICK_MS, "the probe is waited for, for an interval"
        assert await site.tick() == 0, "it is not waited for again"
        assert await site.rows("sound") == [1, 2], "the other source goes on"
        assert await site.rows("slow") == []
        problems = site.core.health.problems()
        assert problems.keys() == {"slow"}
        assert problems["slow"].startswith(SILENT), problems
        assert (site.gate.asked, site.gate.most) == (1, 1), "it is asked once"
        said = dict(problems)
        await site.tick()
        assert site.core.health.problems() == said, "what is said does not change while nothing does"
        site.gate.answers.set()
        await others()
        assert await site.tick() < TICK_MS / 10
        assert await site.rows("slow") == [1, 2], "the answer that came meanwhile is bound"
        assert site.core.health.problems() == {}
        site.upstreams["slow"].produce("p", 3)
        await site.tick()
        await site.tick()
        assert await site.rows("slow") == [1, 2, 3], "it is asked again"

    run(body)


def test_who_wants_all_of_it_waits_for_the_answer() -> None:
    """Damage: `run --once`, and a statement that must read a source, end before a slow upstream has answered."""

    async def body(site: Site) -> None:
        assert await site.tick() == TICK_MS
        asyncio.get_running_loop().call_later(0.05, site.gate.answers.set)
        await site.tick(wait=True)
        assert await site.rows("slow") == [1, 2]

    run(body)


def test_a_refusal_after_a_long_silence_is_said_and_nothing_is_read_until_upstream_answers() -> None:
    """Damage: the client of a dead broker gives up after 5 s, and the read that follows costs the tick 5 s more."""

    async def body(site: Site) -> None:
        site.gate.answers.set()
        await site.tick()
        site.upstreams["slow"].produce("p", 3)
        await site.core.ingest(step=False)  # it is bound, and not read
        site.gate.answers.clear()
        await site.tick()
        reads, site.upstreams["slow"].down = len(site.slow.reads), True
        site.gate.answers.set()
        await others()
        await site.tick()
        said = site.core.health.problems()["slow"]
        assert said.startswith(SILENT), said
        assert "and is asked again: the upstream does not answer; bring it back" in said, said
        assert len(site.slow.reads) == reads, "it was not read from"
        site.upstreams["slow"].down = False
        for _ in range(2):
            await others()
            await site.tick()
        assert await site.rows("slow") == [1, 2, 3]
        assert site.core.health.problems() == {}

    run(body)


def test_a_commit_that_is_not_answered_holds_up_nothing_either() -> None:
    """Damage: the coordinator of a consumer group is away, and each tick lasts as long as a commit may take."""

    async def body(site: Site) -> None:
        site.slow.commits = True
        waited = [await site.tick() for _ in range(4)]
        assert sum(waited) <= TICK_MS, waited
        assert await site.rows("sound") == [1, 2]
        assert site.core.health.problems()["slow"].startswith(SILENT)
        assert site.gate.most == 1
        site.gate.answers.set()
        for _ in range(3):
            await others()
            await site.tick()
        assert site.upstreams["slow"].forgotten == Offsets({"p": 2})
        assert await site.rows("slow") == [1, 2]
        assert site.core.health.problems() == {}

    run(body)


def test_ending_a_source_ends_the_question() -> None:
    """Damage: a dropped source's probe goes on for ever, and so does the process that closes."""

    async def body(site: Site) -> None:
        await site.tick()
        assert site.gate.waiting == 1
        await site.core.require_writing().stop(site.core.catalog.items["slow"])
        assert site.gate.waiting == 0

    run(body)


def test_a_question_that_fails_unexpectedly_is_the_sources_problem() -> None:
    """Damage: a fault in a reader ends the tick of everything, or is never seen."""

    async def body(site: Site) -> None:
        async def broken() -> Offsets:
            await site.gate.passed()
            raise KeyError("a fault")

        site.slow.upstream_frontier = broken  # type: ignore[method-assign]
        await site.tick()
        site.gate.answers.set()
        await others()
        await site.tick()
        assert "a fault" in site.core.health.problems()["slow"]
        assert await site.rows("sound") == [1, 2]

    run(body)


def test_an_upstream_that_refuses_at_once_is_no_silent_one() -> None:
    """Damage: what is bound already is not read, though upstream answers."""

    async def body(site: Site) -> None:
        site.gate.answers.set()
        await site.tick()
        site.upstreams["slow"].produce("p", 3)
        await site.core.ingest(step=False)

        async def refused() -> Offsets:
            raise Unavailable("upstream has no leader now")

        site.slow.upstream_frontier = refused  # type: ignore[method-assign]
        assert await site.tick() == 0
        assert site.core.health.problems()["slow"] == "upstream has no leader now"
        assert await site.rows("slow") == [1, 2, 3]

    run(body)
