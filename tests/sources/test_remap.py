"""The remap collection: each time is bound once, whoever binds it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptionError, FencedError
from strandline.frontier.antichain import Frontier
from strandline.frontier.gauge import Offsets
from strandline.persist.client import PersistClient
from strandline.persist.records import Record
from strandline.sources.reclock import Binding, Remap
from strandline.sources.remap import RemapShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock

CASES = json.loads((Path(__file__).parent.parent / "cases" / "reclock.json").read_text())


class Place:
    """One location, and the processes that come to it."""

    def __init__(self):
        self.blob, self.consensus, self.processes = MemoryBlob(), MemoryConsensus(), 0

    async def open(self, epoch=1):
        self.processes += 1
        client = PersistClient(HandClock(), CountingIds(f"p{self.processes}"), self.blob, self.consensus)
        return await RemapShard.open(await client.records("remap", epoch), epoch)


def test_a_stale_instance_reads_what_the_other_bound_and_adds_the_difference():
    """Damage: two instances give one message two times."""
    case = CASES["mint_conflict"]

    async def body():
        place = Place()
        instances = {"A": await place.open(), "B": await place.open()}
        for name, time, offsets in case["mints"]:
            await instances[name].mint(time, Offsets(offsets))
        wanted = tuple(Binding(time, Offsets(offsets)) for time, offsets in case["bindings"])
        assert instances["B"].remap.bindings == wanted
        assert (await instances["A"].refresh()).bindings == wanted
        assert (await place.open()).remap == instances["B"].remap

    asyncio.run(body())


def test_a_time_that_is_bound_stays_as_it_is():
    """Damage: a restarted instance gives a time more messages than were read for it."""

    async def body():
        place = Place()
        first, second = await place.open(), await place.open()
        await first.mint(1000, Offsets({"0": 3}))
        assert (await second.mint(1000, Offsets({"0": 9}))).bindings == (Binding(1000, Offsets({"0": 3})),)
        assert (await second.mint(500, Offsets({"0": 9}))).upper == Frontier(1001)

    asyncio.run(body())


def test_a_stale_probe_binds_nothing_back():
    """Law R1.  Damage: an instance that paused between probe and mint withdraws what was bound meanwhile."""

    async def body():
        place = Place()
        first, second = await place.open(), await place.open()
        await first.mint(1000, Offsets({"0": 7, "1": 1}))
        remap = await second.mint(2000, Offsets({"0": 5, "1": 2}))
        assert remap.offsets_at(2000) == Offsets({"0": 7, "1": 2})

    asyncio.run(body())


@given(st.lists(st.tuples(st.integers(1, 3), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9))), max_size=8))
def test_what_is_stored_is_what_was_minted(mints):
    """Damage: a restart sees other bindings than those that data were written for."""

    async def body():
        place, now, wanted = Place(), 0, Remap()
        shard = await place.open()
        for step, offsets in mints:
            now += step
            wanted = wanted.mint(now, Offsets(offsets))
            await shard.mint(now, Offsets(offsets))
        assert shard.remap == wanted
        assert (await place.open()).remap == wanted

    asyncio.run(body())


def test_a_fenced_instance_binds_nothing():
    """Damage: a zombie decides the times of its successor's messages."""

    async def body():
        place = Place()
        zombie, successor = await place.open(epoch=1), await place.open(epoch=2)
        with pytest.raises(FencedError, match="epoch 2"):
            await zombie.mint(1000, Offsets({"0": 3}))
        assert (await successor.refresh()).bindings == ()

    asyncio.run(body())


def test_two_offsets_of_one_partition_are_a_corruption_that_is_named():
    """Damage: a message gets whichever time comes first in a dictionary."""

    async def body():
        place = Place()
        client = PersistClient(HandClock(), CountingIds(), place.blob, place.consensus)
        records = await client.records("remap", 1)
        await records.append([Record(b'["0",3]', 4, 1), Record(b'["0",5]', 4, 1)], Frontier(0), Frontier(9))
        with pytest.raises(CorruptionError, match="remap"):
            await place.open()

    asyncio.run(body())
