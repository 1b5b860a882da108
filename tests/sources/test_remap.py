"""The remap collection: each time is bound once, by whichever instance is first."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptionError, FencedError
from strandline.frontier import Frontier, Offsets
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record
from strandline.sources.reclock import Binding, Remap
from strandline.sources.remap import RemapShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock

CASES = json.loads((Path(__file__).parent.parent / "cases" / "reclock.json").read_text())


class Place:
    """One location, and the processes that come to it."""

    def __init__(self):
        self.blob, self.consensus, self.processes = MemoryBlob(), MemoryConsensus(), 0

    def client(self, **options):
        self.processes += 1
        return PersistClient(HandClock(), CountingIds(f"p{self.processes}"), self.blob, self.consensus, **options)

    async def open(self, epoch=1):
        return await RemapShard.open(await self.client().records("remap", epoch), epoch)


class Touched:
    """Counts the offsets that are made or compared: what going through bindings costs."""

    def __init__(self, monkeypatch):
        self.count = 0
        for name in ("__init__", "__le__"):
            monkeypatch.setattr(Offsets, name, self._counting(getattr(Offsets, name)))

    def _counting(self, call):
        def counted(*given):
            self.count += 1
            return call(*given)

        return counted

    async def during(self, call):
        before = self.count
        await call
        return self.count - before


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


@pytest.mark.parametrize("diff", [2, -1])
def test_an_offset_that_is_not_there_once_is_a_corruption_beside_others_that_are(diff):
    """Damage: a damaged binding is read as a right one, and each message of the partition has a time of its own."""

    async def body():
        place = Place()
        records = await place.client().records("remap", 1)
        found = [Record(b'["0",3]', 4, 1), Record(b'["1",5]', 4, diff)]
        await records.append(found, Frontier(0), Frontier(9))
        with pytest.raises(CorruptionError, match="at time 4 it holds .*, not one offset a partition"):
            await place.open()

    asyncio.run(body())


def test_a_mint_costs_the_same_after_a_thousand_bindings(monkeypatch):
    """Damage: after a day of ticks a source spends all its time on binding the next one."""

    async def body():
        shard, touched = await Place().open(), Touched(monkeypatch)
        costs = [await touched.during(shard.mint(n, Offsets({"0": n + 1}))) for n in range(1_000)]
        assert max(costs[-100:]) <= max(costs[:10])

    asyncio.run(body())


def test_what_another_instance_bound_is_taken_over_without_going_through_the_rest(monkeypatch):
    """Damage: a source that two instances read gets slower with every binding."""

    async def body():
        place, touched = Place(), Touched(monkeypatch)
        writing, following = await place.open(), await place.open()
        costs = []
        for n in range(500):
            await writing.mint(n, Offsets({"0": n + 1}))
            costs.append(await touched.during(following.refresh()))
        assert following.remap == writing.remap
        assert max(costs[-100:]) <= max(costs[:10])

    asyncio.run(body())


def test_of_what_is_durable_one_binding_is_kept():
    """Damage: a process that runs for a month holds a month of bindings in memory."""

    async def body():
        shard = await Place().open()
        for n in range(100):
            await shard.mint(n, Offsets({"0": n + 1}))
            shard.compact(Frontier(max(0, n - 2)))
        assert [b.time for b in shard.remap.bindings] == [96, 97, 98, 99]
        assert shard.remap.resume([Frontier(97)]) == Offsets({"0": 97})

    asyncio.run(body())


def counting_calls(store, monkeypatch):
    """Counts the calls to a store, and the bytes that are written."""
    counted = Counter()
    for name in ("compare_and_set", "compare_and_set_many", "scan", "head", "truncate", "get", "set", "delete"):
        if hasattr(store, name):
            call = getattr(store, name)

            async def counting(*given, call=call, name=name):
                counted[name] += 1
                counted["bytes"] += len(given[1]) if name == "set" else 0
                counted["bytes"] += len(given[0].new.data) if name == "compare_and_set" else 0
                return await call(*given)

            monkeypatch.setattr(store, name, counting)
    return counted


@pytest.mark.parametrize("ticks", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.time_limit(300)
def test_a_remap_stays_small_however_many_ticks_there_were(ticks, monkeypatch):
    """Damage: after a year of ticks a source needs a year of bindings to start, and a second to bind the next tick."""

    async def body():
        place, partitions, lag = Place(), [str(n) for n in range(4)], 3
        calls = [counting_calls(store, monkeypatch) for store in (place.blob, place.consensus)]
        client, touched = place.client(grace_ms=0), Touched(monkeypatch)
        shard = await RemapShard.open(await client.records("remap", 1), 1)
        hold = await client.since("remap", "history", 1)
        costs, live = [], 0
        begun, ended = 1_000_000, 1_000_000 + ticks  # so that all numbers have as many digits
        for n in range(begun, ended):
            before = sum(calls, Counter())
            work = await touched.during(shard.mint(n, Offsets(dict.fromkeys(partitions, n + 1))))
            costs.append((work, sum(calls, Counter()) - before))
            shard.compact(Frontier(max(0, n - lag)))
            live = max(live, len(shard.remap.bindings))
            if n % 16 == 15:  # as an environment does at its ticks
                await hold.downgrade(Frontier(max(0, n - lag)))
            client.clock.now += 1_000
        stored = sum(batch.rows for batch in shard._shard.state.batches)
        assert live <= lag + 3
        assert stored <= 1_000
        early, late = costs[200:1_000], costs[-800:]
        for what in ("bytes", "compare_and_set", "scan", "get", "set"):
            assert sum(cost[what] for _, cost in late) <= 1.1 * sum(cost[what] for _, cost in early) + 800, what
        assert max(work for work, _ in late) <= max(work for work, _ in early)
        fresh = await place.open()
        assert len(fresh.remap.bindings) <= lag + 20
        durable = Frontier(ended - lag)
        assert fresh.remap.slices(durable, fresh.remap.upper) == shard.remap.slices(durable, shard.remap.upper)

    asyncio.run(body())


bound = st.lists(st.tuples(st.integers(1, 3), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9))), min_size=1)


@given(bound, st.data())
def test_a_remap_that_was_compacted_where_it_is_stored_resumes_where_it_was(mints, data):
    """``compact(reclock(remap)) = reclock(compact(remap))``, also for a follower, and for a new start.

    Damage: a message gets another time after a restart, or is read twice, or never.
    """

    async def body():
        place, now = Place(), 0
        shard, behind = await place.open(), await place.open()
        for step, offsets in mints:
            now += step
            await shard.mint(now, Offsets(offsets))
            if data.draw(st.booleans(), "follows"):
                await behind.refresh()
        whole = shard.remap
        durable = Frontier(data.draw(st.integers(1, whole.upper.at), "durable"))
        hold = await place.client().since("remap", "history", 1)
        await hold.downgrade(Frontier(durable.at - 1))
        shard.compact(durable)
        await shard.mint(now + 1, Offsets({"a": 99}))
        whole = whole.mint(now + 1, Offsets({"a": 99}))
        for found in (shard.remap, await behind.refresh(), (await place.open()).remap):
            assert found.compact(Frontier(durable.at - 1)) == whole.compact(Frontier(durable.at - 1))
            assert found.resume([durable]) == whole.resume([durable])
            assert found.slices(durable, found.upper) == whole.slices(durable, whole.upper)

    asyncio.run(body())


def test_what_another_coroutine_bound_meanwhile_stays_known():
    """Damage: bindings that were seen are gone again, and what is read next is cut where it was never bound."""

    async def body():
        shared = await Place().open()
        append = shared._shard.append

        async def slow(*given):
            outcome = await append(*given)
            shared._shard.append = append
            await shared.refresh()
            await shared.mint(2000, Offsets({"0": 5}))
            return outcome

        shared._shard.append = slow
        await shared.mint(1000, Offsets({"0": 3}))
        assert shared.remap.upper == Frontier(2001)
        assert shared.remap.frontier == Offsets({"0": 5})

    asyncio.run(body())


def test_what_another_coroutine_bound_while_bindings_were_read_stays_known():
    """Damage: the same, and a law that holds is called broken."""

    async def body():
        place = Place()
        other, shared = await place.open(), await place.open()
        await other.mint(1000, Offsets({"0": 3}))
        contents = shared._shard.contents

        async def slow(*given, **options):
            found = await contents(*given, **options)
            shared._shard.contents = contents
            await shared.mint(2000, Offsets({"0": 5}))
            return found

        shared._shard.contents = slow
        await shared.refresh()
        assert shared.remap.upper == Frontier(2001)

    asyncio.run(body())
