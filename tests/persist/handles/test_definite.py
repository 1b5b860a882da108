"""Reading during compaction and collection: a reader without writes and holds gets the right rows, or `AsOfError`."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import AsOfError, CorruptionError, Indeterminate, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.handles.read import REPLANS_MAX, read_definitely
from strandline.persist.notices import Polling
from strandline.store.blob_kinds.reading import ReadingBlob, ReadingConsensus
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import CompareAndSet, Versioned
from strandline.testing.doubles import CountingIds
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds

SCHEMA = Schema((Column("k", "string"),))
SEEDS = 250
TIMES = 10


class RefusingBlob(MemoryBlob):
    """Fails the test at any change."""

    async def set(self, key, data):
        raise AssertionError(f"set {key}")

    async def delete(self, key):
        raise AssertionError(f"delete {key}")


class RefusingConsensus(MemoryConsensus):
    """Fails the test at any change."""

    async def compare_and_set(self, request):
        raise AssertionError(f"set {request.key}")

    async def compare_and_set_many(self, requests):
        raise AssertionError(f"set {requests}")

    async def truncate(self, key, seqno):
        raise AssertionError(f"truncate {key}")


class Unconnectable(Polling):
    """Fails the test at any notice."""

    def publish(self, notice):
        raise AssertionError(f"published a notice of {notice.shard}")


def independent(place):
    """A client of ``place`` that may change nothing; any change fails the test."""
    blob, consensus = RefusingBlob(place.objects), RefusingConsensus(place.versions)
    client = PersistClient(place.clock, CountingIds("i"), blob, consensus, notifier=Unconnectable(place.clock))
    return client, ListEngine(blob)


def seen(rows):
    """Rows as plain pairs."""
    sums = {}
    for row in listed(rows).rows:
        sums[row["k"]] = sums.get(row["k"], 0) + row["__diff"]
    return sorted((k, n) for k, n in sums.items() if n)


def filled(place, merger=None, grace_ms=0):
    """A shard with a row at each time, in parts of its own each; return its writer's client and the writer."""
    client = place.client(merger, rollup_every=2, grace_ms=grace_ms)
    writer = place.writer(client=client)
    for time in range(TIMES):
        staged = place.stage("s", time, time + 1, [[f"row {time}", time, 1]], inline=0)
        run_sync(writer.compare_and_append([staged], Frontier(time), Frontier(time + 1)))
    return client, writer


def read(handle, engine, time):
    """Read at ``time`` without waiting."""

    async def plan():
        return await handle.snapshot(time, timeout_s=0)

    return seen(run_sync(read_definitely(engine, handle, plan))[1])


def upto(time):
    """The contents at ``time``."""
    return [(f"row {n}", 1) for n in range(time + 1)]


def test_an_independent_reader_reads_listens_and_looks_without_any_change_or_word(place):
    """Damage: an independent reader holds the writer's garbage, fences it, or wakes it."""
    client, writer = filled(place)
    reading, engine = independent(place)
    handle = run_sync(reading.reader("s", place.schema, "orders"))
    assert read(handle, engine, 4) == upto(4)
    place.append(writer, TIMES, TIMES + 300)
    run_sync(client.advance_many([(writer, Frontier(1000), "")]))
    assert read(handle, engine, 500) == upto(TIMES - 1)
    assert run_sync(reading.reader("absent", place.schema, "absent")) is None
    run_sync(handle.beat())
    run_sync(handle.close())
    assert run_sync(reading.inspect("s")).state == handle.state


def test_parts_that_were_merged_and_collected_are_read_where_they_are_now(place):
    """Damage: a reader without a hold gets an error for rows that exist."""
    client, _ = filled(place, place.engine, grace_ms=0)
    reading, engine = independent(place)
    handle = run_sync(reading.reader("s", place.schema, "orders"))
    planned = run_sync(handle.snapshot(TIMES - 1, timeout_s=0))
    collect(client, place.objects)
    with pytest.raises(CorruptionError, match="missing"):
        run_sync(engine.read(planned))  # the parts are gone: else this test shows nothing
    plans = []

    async def plan():
        plans.append(handle.state.seqno)
        return planned if len(plans) == 1 else await handle.snapshot(TIMES - 1, timeout_s=0)

    contents, rows = run_sync(read_definitely(engine, handle, plan))
    assert seen(rows) == upto(TIMES - 1)
    assert contents.batches != planned.batches
    assert len(plans) == 2


def collect(client, objects):
    """Merge all of it, and collect until nothing is left of the parts that were there."""
    before = {key for key in objects if "/parts/" in key}
    run_sync(run_sync(client.compactor("s")).whole())
    writer = run_sync(client.writer("s", 1, schema=SCHEMA.ddl))
    for _ in range(8):  # until a rollup comes after the merge
        run_sync(writer.compare_and_append([], writer.state.upper, Frontier(writer.state.upper.at + 1)))
        run_sync(run_sync(client.collector("s")).collect())
        if not before & objects.keys():
            return
    raise AssertionError(f"never collected: {before & objects.keys()}")


def test_history_that_was_compacted_away_is_said_to_be_so(place):
    """Damage: a reader without a hold reads rows of another time."""
    client, _ = filled(place, place.engine, grace_ms=0)
    reading, engine = independent(place)
    handle = run_sync(reading.reader("s", place.schema, "orders"))
    planned = run_sync(handle.snapshot(TIMES - 2, timeout_s=0))
    run_sync(run_sync(client.since("s", "history", 1)).downgrade(Frontier(TIMES - 1)))
    collect(client, place.objects)
    plans = iter([planned])

    async def plan():
        return next(plans, None) or await handle.snapshot(TIMES - 2, timeout_s=0)

    with pytest.raises(AsOfError, match=rf"since \[{TIMES - 1}\] is compacted"):
        run_sync(read_definitely(engine, handle, plan))
    assert read(handle, engine, TIMES - 1) == upto(TIMES - 1)


def test_a_part_that_the_newest_state_names_and_that_is_missing_is_corruption(place):
    """Damage: a lost part counts as collected, and the reader replans for ever."""
    filled(place)
    reading, engine = independent(place)
    handle = run_sync(reading.reader("s", place.schema, "orders"))
    (victim, *_) = [key for key in place.objects if "/parts/" in key]
    del place.objects[victim]
    with pytest.raises(CorruptionError, match="missing"):
        read(handle, engine, TIMES - 1)
    assert reading.metrics.corruption_errors == 1


def test_a_reader_that_is_overtaken_again_and_again_is_advised_to_take_a_lease(place):
    """Damage: a reader without a hold never ends."""
    filled(place)
    reading, _ = independent(place)
    handle = run_sync(reading.reader("s", place.schema, "orders"))
    plans = iter(range(TIMES))

    async def plan():
        return await handle.snapshot(next(plans), timeout_s=0)

    class Gone:
        async def read(self, contents):
            raise CorruptionError("missing")

    assert REPLANS_MAX < TIMES
    with pytest.raises(AsOfError, match="read it under a lease"):
        run_sync(read_definitely(Gone(), handle, plan))


@pytest.mark.parametrize("change", ["set", "delete", "compare_and_set", "compare_and_set_many", "truncate"])
def test_a_read_only_store_cannot_be_changed(place, change):
    """Damage: a bug in a reader's code changes the location."""
    blob, consensus = ReadingBlob(place.blob), ReadingConsensus(place.consensus)
    request = CompareAndSet("k", None, Versioned(0, b""))
    call = {
        "set": lambda: blob.set("k", b""),
        "delete": lambda: blob.delete("k"),
        "compare_and_set": lambda: consensus.compare_and_set(request),
        "compare_and_set_many": lambda: consensus.compare_and_set_many([request]),
        "truncate": lambda: consensus.truncate("k", 0),
    }[change]
    with pytest.raises(InvalidUsage, match="only reads the location"):
        run_sync(call())
    assert place.objects == {}
    assert place.versions == {}


def test_beside_a_writer_that_compacts_and_collects_at_once_only_right_rows_are_read():
    """Damage: a reader without a hold sees half of a merge, or another's rows."""
    right = gone = 0
    for seed in range(SEEDS):
        for found in raced(seed):
            right += found
            gone += not found
    assert right > SEEDS * 3
    assert gone < right


def raced(seed):
    """Run a writer that merges and collects without grace and a reader without holds; return what each read gave."""
    simulation = Simulation(Seeded(random.Random(seed)), steps_max=20_000, calm_after=4_000, fates=())
    objects, versions, ids = {}, {}, SimIds()
    blob, consensus = MemoryBlob(objects), MemoryConsensus(versions)
    outcomes = []

    async def write():
        engine = ListEngine(SimBlob(blob))
        client = PersistClient(
            SimClock(simulation), ids, SimBlob(blob), SimConsensus(consensus), engine, rollup_every=2, grace_ms=0
        )
        writer = await client.writer("s", 1, schema=SCHEMA.ddl)
        hold = await client.since("s", "history", 1)
        for time in range(TIMES):
            rows = updates(SCHEMA, [{"k": f"row {time}", "__time": time}])
            staged = await engine.stage(rows, StageRequest("s", SCHEMA, time, time + 1, f"s/parts/0-{time}/"))
            await writer.compare_and_append([staged], Frontier(time), Frontier(time + 1))
            if time % 3 == 2:
                await hold.downgrade(Frontier(time - 1))
                with suppress(Indeterminate, Unavailable):
                    await (await client.compactor("s")).whole()
                    await (await client.collector("s")).collect()

    async def look():
        engine = ListEngine(SimBlob(RefusingBlob(objects)))
        stores = SimBlob(RefusingBlob(objects)), SimConsensus(RefusingConsensus(versions))
        client = PersistClient(SimClock(simulation), ids, *stores)
        while (handle := await client.reader("s", SCHEMA, "orders")) is None:
            await client.clock.sleep(0.01)
        for _ in range(8):
            state = await handle.refresh()
            if state.upper.at:
                time = max(state.since.at, state.upper.at - 2)
                try:
                    _, rows = await read_definitely(engine, handle, lambda at=time: handle.snapshot(at, timeout_s=0))
                except AsOfError:
                    outcomes.append(False)
                else:
                    assert seen(rows) == upto(time), f"seed {seed}"
                    outcomes.append(True)
            await client.clock.sleep(0.01)

    simulation.spawn("writer", lambda _: write())
    simulation.spawn("reader", lambda _: look())
    simulation.drive()
    return outcomes
