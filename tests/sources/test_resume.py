"""Upstream may forget what every output has, and nothing else; it learns so at the start and at ticks."""

from __future__ import annotations

import asyncio

import pytest

from strandline.errors import CorruptionError, FencedError, Unavailable
from strandline.frontier import Frontier, Offsets
from strandline.persist.client import PersistClient
from strandline.sources.ingest import PERIOD_MS, ResumptionFrontier
from strandline.sources.question import PATIENT, Question
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.upstreams.list_tables import SCHEMA

OUTPUTS = ("a", "b")


class Listening:
    """An upstream that notes what may be forgotten."""

    def __init__(self):
        self.told, self.down = [], False

    async def commit(self, resume):
        if self.down:
            raise Unavailable("the upstream does not answer")
        self.told.append(resume)


class Place:
    """A location with a remap that binds offset n at time n, and two outputs."""

    def __init__(self):
        self.clock, self.blob, self.consensus = HandClock(), MemoryBlob(), MemoryConsensus()
        self.upstream, self.processes = Listening(), 0

    def client(self):
        self.processes += 1
        return PersistClient(self.clock, CountingIds(f"p{self.processes}"), self.blob, self.consensus)

    async def open(self, *, bound=9, outputs=OUTPUTS):
        client = self.client()
        self.remap = await RemapShard.open(await client.records("remap", 1), 1)
        for time in range(1, bound):
            await self.remap.mint(time, Offsets({"p": time}))
        self.data = {name: await client.writer(name, 1, schema=SCHEMA.ddl) for name in outputs}
        return ResumptionFrontier(
            self.clock, self.upstream, self.remap, list(self.data.values()), Question(self.clock, PATIENT)
        )

    async def durable(self, name, upper, *, epoch=1):
        """Another process makes an output durable up to ``upper``."""
        writer = await self.client().writer(name, epoch, schema=SCHEMA.ddl)
        await writer.compare_and_append([], writer.state.upper, Frontier(upper))


def run(body):
    """Run the coroutine function ``body`` in a fresh place."""
    asyncio.run(body(Place()))


@pytest.mark.parametrize(
    ("bound", "uppers", "told"),
    [
        (9, {"a": 5, "b": 7}, 4),  # the predecessor of the meet
        (9, {"a": 7, "b": 5}, 4),
        (9, {"a": 7}, 0),  # one has nothing: what it begins with must stay
        (9, {"a": 9, "b": 9}, 8),
        (9, {}, 0),
    ],
)
def test_upstream_may_forget_what_every_output_has(bound, uppers, told):
    """Law R4.  Damage: a table that is copied late finds its changes deleted; or upstream's disk fills."""

    async def body(place):
        frontier = await place.open(bound=bound)
        for name, upper in uppers.items():
            await place.durable(name, upper)
        await frontier.advance()
        assert place.upstream.told == [Offsets({"p": told})] == [frontier.offsets]

    run(body)


def test_a_source_that_feeds_nothing_keeps_nothing_upstream():
    """Damage: a source whose tables were all dropped fills upstream's disk for ever."""

    async def body(place):
        await (await place.open(outputs=())).advance()
        assert place.upstream.told == [Offsets({"p": 8})]

    run(body)


def test_upstream_learns_at_most_each_second_and_whenever_the_clock_was_set_back():
    """Damage: upstream is asked at every step; or, after a clock was corrected by an hour, not for an hour."""

    async def body(place):
        frontier = await place.open()
        for name in OUTPUTS:
            await place.durable(name, 5)
        await frontier.follow()
        await frontier.follow()
        place.clock.now += PERIOD_MS - 1
        await frontier.follow()
        assert len(place.upstream.told) == 1
        place.clock.now += 1
        await frontier.follow()
        assert len(place.upstream.told) == 2
        place.clock.now -= 3_600_000
        await frontier.follow()
        assert len(place.upstream.told) == 3

    run(body)


def test_an_upstream_that_does_not_answer_learns_it_later():
    """Damage: a broker that is away for a moment keeps everything for ever, or ends the tick."""

    async def body(place):
        frontier = await place.open()
        for name in OUTPUTS:
            await place.durable(name, 5)
        place.upstream.down = True
        await frontier.advance()
        assert (frontier.problem, frontier.offsets) == ("the upstream does not answer", NOTHING_READ)
        place.upstream.down = False
        await frontier.follow()  # at once, and not a second later
        assert (frontier.problem, frontier.offsets) == ("", Offsets({"p": 4}))

    run(body)


@pytest.mark.parametrize("outputs", [OUTPUTS, ()])
def test_an_instance_that_was_taken_over_lets_upstream_forget_nothing_more(outputs):
    """Law R4.  Damage: the newer feeds one output more, and the older deletes what that one needs."""

    async def body(place):
        frontier = await place.open(outputs=outputs)
        await frontier.advance()
        await RemapShard.open(await place.client().records("remap", 2), 2)  # as every instance begins
        for name in outputs:
            await place.durable(name, 8, epoch=2)
        with pytest.raises(FencedError, match="admitted epoch 2, this writer has 1"):
            await frontier.advance()
        assert len(place.upstream.told) == 1

    run(body)


def test_the_remap_forgets_in_memory_what_every_output_has():
    """Damage: a process that runs for a month holds a month of bindings; or one that an output still needs is gone."""

    async def body(place):
        frontier = await place.open()
        await place.durable("a", 8)
        await place.durable("b", 5)
        await frontier.advance()
        assert [binding.time for binding in place.remap.remap.bindings] == [4, 5, 6, 7, 8]
        await place.durable("b", 7)
        frontier.forget()
        assert place.remap.remap.since == Frontier(4)  # what is not known here is not asked for
        await place.data["b"].refresh()
        frontier.forget()
        assert place.remap.remap.since == Frontier(6)

    run(body)


async def overtaken(place, then):
    """Advance while another instance makes outputs durable, and forgets; ``then``: what it does once that was seen."""
    frontier = await place.open()
    for name in OUTPUTS:
        await place.durable(name, 3)
    refresh = place.remap.refresh

    async def slow():
        place.remap.refresh = refresh
        for name in OUTPUTS:
            await place.durable(name, 8)
        await (await place.client().since("remap", "history", 1)).downgrade(Frontier(7))
        seen = await refresh()
        await then()
        return seen

    place.remap.refresh = slow
    await frontier.advance()
    return frontier.offsets


def test_what_another_instance_made_durable_and_forgot_meanwhile_is_no_damage():
    """Damage: a source does not open because another instance goes on while it does."""

    async def body(place):
        async def nothing():
            pass

        assert await overtaken(place, nothing) == Offsets({"p": 7})

    run(body)


def test_what_another_instance_bound_and_made_durable_meanwhile_is_no_damage():
    """Damage: one of two replicas calls a shard a copy of another moment because the other one is faster."""

    async def body(place):
        async def go_on():
            other = await RemapShard.open(await place.client().records("remap", 1), 1)
            for time in range(9, 12):
                await other.mint(time, Offsets({"p": time}))
            for name in OUTPUTS:
                await place.durable(name, 12)

        assert await overtaken(place, go_on) == Offsets({"p": 11})

    run(body)


def test_shards_that_cannot_have_come_to_be_are_refused_by_name():
    """Damage: a source goes on from a copy of another moment, and messages are lost or doubled."""

    async def body(place):
        frontier = await place.open()
        await place.durable("a", 12)
        with pytest.raises(CorruptionError, match=r"'a' is durable up to \[12\].*'remap' is bound up to \[9\] only"):
            await frontier.advance()

    async def compacted(place):
        frontier = await place.open()
        await place.durable("a", 9)
        await place.durable("b", 3)
        hold = await place.client().since("remap", "history", 1)
        await hold.downgrade(Frontier(6))
        with pytest.raises(CorruptionError, match=r"'b' is durable up to \[3\].*'remap' is compacted to \[6\]"):
            await frontier.advance()

    run(body)
    run(compacted)
