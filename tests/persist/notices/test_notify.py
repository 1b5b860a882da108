"""Notices only reduce latency: whatever happens to them, the answers are the same."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import AsOfError, Indeterminate, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.notices import (
    DIFF_BYTES_MAX,
    NOTICES_WAITING_MAX,
    LocalNotifier,
    Notice,
    Polling,
    notice_of,
)
from strandline.store.clock import SystemClock
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Outcome
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Fate, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds, SimNotices

SCHEMA = Schema((Column("k", "string"),))
VERSIONS = 8
SEEDS = 300


class Recording:
    """A notifier that records notices and delivers none."""

    def __init__(self):
        self.published = []

    def publish(self, notice):
        self.published.append(notice)

    async def subscribe(self, shard):
        raise AssertionError("no reader listens in this test")


# ---- one process


def reading(place):
    """A process that reads the shard, its handle, and the machine that hears notices for it."""
    reader = place.client()
    return reader, run_sync(reader.reader("s", SCHEMA, "orders")), reader._machines["s"]


def test_exactly_the_committed_versions_are_published_in_order_with_their_diffs(place):
    """Damage: a reader applies a version that never existed, or receives none."""
    recording = Recording()
    client = place.client(notifier=recording)
    writer = place.writer(client=client)
    place.append(writer, 0, 1, [["a", 0, 1]])
    assert place.append(place.writer(), 0, 5).actual == Frontier(1)  # a refusal changes nothing, by another process
    place.append(writer, 1, 2, [["b", 1, 1]])
    run_sync(client.advance_many([(writer, Frontier(9), "")]))
    assert recording.published == [
        Notice("s", version.seqno, version.data)
        for version in run_sync(place.consensus.scan("s", recording.published[0].seqno, 100))
        if version.seqno in {notice.seqno for notice in recording.published}
    ]
    assert [notice.seqno for notice in recording.published][-1] == place.state().seqno


def test_a_commit_that_is_refused_or_unknown_is_not_published(place):
    """Damage: a notice of a version that is not in Consensus gives its reader a different state."""
    recording = Recording()
    writer = place.writer(client=place.client(notifier=recording))
    before = len(recording.published)
    place.consensus.plan.extend([Outcome.LOST] * 200)
    with pytest.raises(Indeterminate):
        place.append(writer, 0, 1, [["a", 0, 1]])
    assert len(recording.published) == before


def test_a_reader_applies_notices_without_asking_consensus(place):
    """Damage: push saves no request, so a thousand readers are a thousand polls a version."""
    recording = Recording()
    writer = place.writer(client=place.client(notifier=recording))
    reader, handle, machine = reading(place)
    del recording.published[:]
    place.append(writer, 0, 3, [["a", 0, 1]])
    scans = []
    place.consensus.scan = lambda *a: scans.append(a)
    assert all(machine.heard(notice) for notice in recording.published)
    assert handle.state == writer.state
    assert reader.metrics.notices == len(recording.published)
    assert place.rows(run_sync(handle.snapshot(2))) == [["a", 2, 1]]
    assert scans == []


@pytest.mark.parametrize("wrong", ["damaged", "of another version", "of another shard", "ahead", "without a diff"])
def test_a_notice_that_does_not_apply_changes_nothing_and_asks_to_fetch(place, wrong):
    """Damage: one damaged packet makes a reader's state wrong for ever."""
    recording = Recording()
    client = place.client(notifier=recording)
    writer = place.writer(client=client)
    other = place.writer("t", client=client)
    _, handle, machine = reading(place)
    before = handle.state
    del recording.published[:]
    place.append(writer, 0, 3, [["a", 0, 1]])
    place.append(writer, 3, 4)
    place.append(other, 0, 1)
    first, second = [notice for notice in recording.published if notice.shard == "s"][:2]
    elsewhere = next(notice for notice in recording.published if notice.shard == "t")
    notice = {
        "damaged": Notice("s", first.seqno, first.diff[:-1] + bytes([first.diff[-1] ^ 1])),
        "of another version": Notice("s", first.seqno, second.diff),
        "of another shard": Notice("s", first.seqno, elsewhere.diff),
        "ahead": second,
        "without a diff": notice_of("s", first.seqno, bytes(DIFF_BYTES_MAX + 1)),
    }[wrong]
    assert machine.heard(notice) is False
    assert machine.metrics.corruption_errors == (wrong in {"damaged", "of another version", "of another shard"})
    assert handle.state is before
    assert run_sync(handle.refresh()) == writer.state


def test_a_notice_of_a_known_version_changes_nothing(place):
    """Damage: a repeated notice causes a fetch, or moves the reader back."""
    recording = Recording()
    writer = place.writer(client=place.client(notifier=recording))
    _, handle, machine = reading(place)
    place.append(writer, 0, 3)
    run_sync(handle.refresh())
    for notice in recording.published:
        assert machine.heard(notice) is True
    assert handle.state == writer.state


def test_a_listener_that_is_behind_loses_the_oldest_notices_alone():
    """Damage: a reader that stopped reading fills the memory of its process."""

    async def body():
        notifier = LocalNotifier()
        notices = await notifier.subscribe("s")
        for seqno in range(NOTICES_WAITING_MAX + 10):
            notifier.publish(Notice("s", seqno, b""))
            notifier.publish(Notice("other", seqno, b""))
        found = [await notices.next(60) for _ in range(NOTICES_WAITING_MAX)]
        assert [notice.seqno for notice in found] == list(range(10, NOTICES_WAITING_MAX + 10))
        assert await notices.next(0) is None
        notices.close()
        notifier.publish(Notice("s", 1, b""))
        assert notifier._listening == {}

    asyncio.run(body())


def test_in_one_process_a_reader_is_woken_by_the_commit_and_does_not_wait_for_its_poll():
    """Damage: a process sees its own write only at its next poll."""

    async def body():
        blob, consensus = MemoryBlob(), MemoryConsensus()
        waits = []

        class Impatient(SystemClock):
            async def sleep(self, seconds):
                waits.append(seconds)

        client = PersistClient(Impatient(), CountingIds(), blob, consensus, notifier=LocalNotifier())
        writer = await client.writer("s", 1, schema=SCHEMA.ddl)
        reader = await client.reader("s", SCHEMA, "orders")
        async with asyncio.TaskGroup() as together:
            waiting = together.create_task(reader.wait_beyond(4))
            together.create_task(writer.compare_and_append([], Frontier(0), Frontier(5)))
        assert waiting.result().upper == Frontier(5)
        assert waits == []

    asyncio.run(body())


def test_a_reader_without_notices_polls_less_and_less_often(place):
    """Damage: without push a reader never sees anything, or asks all the time."""
    place.writer()
    asked = []

    class Clock(HandClock):
        async def sleep(self, seconds):
            asked.append(seconds)
            await super().sleep(seconds)

    clock = Clock()
    client = PersistClient(clock, CountingIds("r"), place.blob, place.consensus, notifier=Polling(clock))
    reader = run_sync(client.reader("s", SCHEMA, "orders"))
    with pytest.raises(AsOfError, match="not complete at 7"):
        run_sync(reader.snapshot(7, timeout_s=60))
    assert asked == [1.2, 2.4, 4.8, 9.6, 16.0, 16.0, 10.0]


# ---- the lossy network, simulated


def answers_of(seed, *, push):
    """One writer and two listening readers, each a process.

    Return each reader's answers, the sum of the times at which it saw each row, the counters of push, and the trace.
    """
    simulation = Simulation(Seeded(random.Random(seed)), [*Fate][:5], calm_after=3_000)
    notices = SimNotices(simulation)
    blob, consensus, ids, objects = MemoryBlob(), MemoryConsensus(), SimIds(), {}
    engine = ListEngine(MemoryBlob(objects))

    def process():
        clock = SimClock(simulation)
        notifier = notices if push else None
        return PersistClient(clock, ids, SimBlob(blob), SimConsensus(consensus), rollup_every=3, notifier=notifier)

    async def write(client):
        writer = await client.writer("s", 1, schema=SCHEMA.ddl)
        for time in range(VERSIONS):
            row = updates(SCHEMA, [{"k": f"row {time}", "__time": time}])
            request = StageRequest("s", SCHEMA, time, time + 1, f"s/parts/{time}/", inline_bytes_max=1 << 14)
            staged = [run_sync(engine.stage(row, request))] if time else []
            new = Frontier(time + 1) if time + 1 < VERSIONS else Frontier(None)
            while writer.state.upper <= Frontier(time):
                with suppress(Indeterminate, Unavailable):
                    await writer.compare_and_append(staged, Frontier(time), new)
            await client.clock.sleep(0.5)

    async def read(client):
        while (reader := await client.reader("s", SCHEMA, "orders")) is None:
            await client.clock.sleep(0.1)
        found, seen_ms = [], 0
        async for contents, _ in reader.listen(0):
            rows = [(r["__time"], r["k"], r["__diff"]) for r in listed(run_sync(engine.read(contents))).rows]
            found, seen_ms = found + rows, seen_ms + len(rows) * simulation.now_ms
        return sorted(found), seen_ms

    simulation.spawn("writer", lambda _: write(process()))
    for name in ("one", "two"):
        simulation.spawn(name, lambda _: read(process()))
    simulation.drive()
    assert notices.listening == []
    answers, seen_ms = zip(*(simulation.results[name] for name in ("one", "two")), strict=True)
    return list(answers), sum(seen_ms), notices, simulation.trace_hash()


def test_losing_doubling_damaging_delaying_and_reordering_notices_changes_no_answer(record_property):
    """Damage: push makes readers return wrong rows, or stop seeing versions."""
    expected = [[(time, f"row {time}", 1) for time in range(1, VERSIONS)]] * 2
    carried = heard = 0
    traces = set()
    for seed in range(SEEDS):
        answers, _, notices, trace = answers_of(seed, push=True)
        assert answers == expected, f"seed {seed}"
        carried, heard = carried + notices.carried, heard + notices.heard
        traces.add(trace)
    assert heard > SEEDS * VERSIONS / 2  # push was there
    assert carried > heard * 0.5
    assert len(traces) > SEEDS * 0.9


def test_without_faults_push_is_seen_sooner_than_by_polling_with_the_same_answers():
    """Damage: push has a cost and no benefit."""
    quiet = 2  # a seed whose faults are switched off
    while Seeded(random.Random(quiet))._rate:
        quiet += 1
    pushed, sooner, *_ = answers_of(quiet, push=True)
    polled, later, *_ = answers_of(quiet, push=False)
    assert pushed == polled
    assert sooner < later
