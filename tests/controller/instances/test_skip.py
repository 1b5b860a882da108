"""Undecodable records of a source in an instance: dismissed by the controller, beside the replicas that ingest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.controller.instances.apart import Site, run

from strandline.controller.asking.skip import skip
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.location.items import Source
from strandline.errors import Unavailable
from strandline.frontier import Frontier
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard
from strandline.sources.steps import withdraw
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream


@dataclass(frozen=True)
class Lists:
    """What `Connectors` are asked of a source over lists, which several replicas may read or one."""

    upstream: Upstream
    shared: bool

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    def counts(self, *_: object) -> str:
        """What offsets count."""
        return "rows"

    def shares(self, *_: object) -> bool:
        """See `Connectors.shares`."""
        return self.shared

    async def reader(self, *_: object) -> ListReader:
        """See `Connectors.reader`."""
        return ListReader(self.upstream)


async def defined(upstream: Upstream, *, shared: bool) -> Site:
    """Return a location whose source ``s`` runs in the replicas ``a`` and ``b`` of an instance."""
    at = Site()
    connectors: Any = Lists(upstream, shared)
    at.place = replace(at.place, assembly=replace(at.place.assembly, connectors=connectors))
    at.process("a")
    at.process("b")
    core = await at.open()
    await at.execute("CREATE INSTANCE x REPLICAS (a 'a:1', b 'b:1')")
    columns = tuple((column.name, column.type) for column in SCHEMA)
    await definitions.add(
        core, Source("s", columns, "data", "list", {}, remap="remap", progress="progress", instance="x")
    )
    return at


async def errors(core: Core) -> int:
    """Return how many errors the source has at its latest time."""
    found: int = (await skip(core, "s", None, apply=False))["rows"]
    return found


@pytest.mark.parametrize("shared", [True, False])
def test_errors_of_a_source_in_an_instance_are_dismissed(shared: bool) -> None:
    """Damage: one undecodable record stops all above it for ever, and the command that the message names fails."""

    async def body() -> None:
        upstream = Upstream()
        upstream.produce("p", 1, None, 2)
        at = await defined(upstream, shared=shared)
        for _ in range(2):
            await at.core.tick()
        assert await errors(at.core) == 1
        found = await skip(at.core, "s", None, apply=True)
        assert found["dismissed_at"] is not None
        assert await errors(at.core) == 0
        upstream.produce("p", None, 3)
        time = await at.core.tick()
        assert at.core.health.problems() == {}
        assert at.core.require_writing().running.upper("s").at == time + 1
        assert await errors(at.core) == 1
        await at.core.close()

    run(body())


def test_a_replica_that_is_faster_costs_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: errors cannot be dismissed as long as replicas are at work."""

    async def body() -> None:
        upstream = Upstream()
        upstream.produce("p", None)
        at = await defined(upstream, shared=True)
        for _ in range(2):
            await at.core.tick()
        epoch, lost = at.core.catalog.writes, 2
        data = await at.core.client.writer("data", epoch, schema=SCHEMA.ddl)

        async def faster(*given: Any) -> None:
            nonlocal lost
            if lost:
                lost -= 1
                await data.compare_and_append([], data.state.upper, Frontier(given[1] + 1))
            await withdraw(*given)

        monkeypatch.setattr("strandline.controller.asking.skip.withdraw", faster)
        await skip(at.core, "s", None, apply=True)
        assert (lost, await errors(at.core)) == (0, 0)
        await at.core.tick()
        assert at.core.health.problems() == {}
        await at.core.close()

    run(body())


def test_what_no_replica_makes_durable_is_not_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: errors are dismissed at a time before messages that were bound and are not durable."""
    monkeypatch.setattr("strandline.controller.asking.skip.CATCHES_UP_S", 0.2)

    async def body() -> None:
        upstream = Upstream()
        upstream.produce("p", None)
        at = await defined(upstream, shared=True)
        await at.core.tick()
        for process in at.processes.values():
            await process.kill()
        epoch = at.core.catalog.writes
        remap = await RemapShard.open(await at.core.client.records("remap", epoch), epoch)
        await remap.mint(at.core.require_writing().oracle.next(), NOTHING_READ)
        with pytest.raises(Unavailable, match="source 's' stands still"):
            await skip(at.core, "s", None, apply=True)
        await at.core.close()

    run(body())
