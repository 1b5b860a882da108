"""Ingestion: each message once, at its time, whatever crashes; what is durable is never read again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import CorruptionError, FencedError, SourceError, Unavailable
from strandline.frontier import Frontier, Offsets
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.persist.handles.records import RecordShard
from strandline.sources import spec
from strandline.sources.ingest import PERIOD_MS, Ingestion, ResumptionFrontier
from strandline.sources.question import PATIENT
from strandline.sources.reclock import NOTHING_READ, Remap
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, Idle, OutputShard, Stalled
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, Crash, Fuse, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream, undecodable


class World:
    """A location, an upstream, and the incarnations of one ingestion."""

    def __init__(self):
        self.clock, self.upstream = HandClock(), Upstream()
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.opened = 0

    def client(self, fuse=None):
        self.opened += 1
        fuse = fuse or Fuse()
        ids = CountingIds(f"p{self.opened}")
        return PersistClient(self.clock, ids, fuse.guard(self.blob), fuse.guard(self.consensus))

    async def open(self, *, epoch=1, fuse=None, kind=Ingestion, reader=None, patience=PATIENT):
        fuse = fuse or Fuse()
        client = self.client(fuse)
        remap = await RemapShard.open(await client.records("remap", epoch), epoch)
        data = await client.writer("data", epoch, schema=SCHEMA.ddl)
        reader, engine = reader or ListReader(self.upstream), ListEngine(fuse.guard(self.blob))
        output = OutputShard("", SCHEMA, data)
        ingestion = await kind.open(self.clock, engine, fuse.guard(reader), remap, [output], patience, name="s")
        ingestion.reader, ingestion.engine = reader, engine
        return ingestion

    async def updates(self):
        """All durable updates: (partition, offset, value or None, error, time) → count."""
        found = Counter()
        reader = await self.client().reader("data", SCHEMA, "data")
        if reader is None:
            return found
        state = reader.state
        for half in (Half.OK, Half.ERR):
            rows = await ListEngine(self.blob).read(contents(state, SCHEMA, 0, state.upper.at, advance=0, half=half))
            for row in listed(rows).rows:
                found[row.get("partition"), row.get("offset"), row.get("value"), row.get(ERROR), row[TIME]] += row[DIFF]
        return found

    async def remap(self):
        """What is bound, as a process that writes nothing sees it."""
        client = self.client()
        if await client.reader("remap", SCHEMA, "remap") is None:
            return Remap()
        machine = client._machines["remap"]
        return (await RemapShard.open(RecordShard(machine, None, self.blob), 0)).remap

    async def expected(self):
        """The same, by the definition, from the bindings and the upstream."""
        bindings = {b.time: b.offsets for b in (await self.remap()).bindings}
        found = Counter()
        messages = {(p, o): v for p, values in self.upstream.partitions.items() for o, v in enumerate(values)}
        for time in bindings:
            for p, o in spec.target(bindings, time, messages):
                value = messages[p, o]
                found[
                    (p, o, value, None, time) if value is not None else (None, None, None, undecodable(p, o), time)
                ] += 1
        return found


def run(body):
    """Run the coroutine function ``body`` in a fresh world."""
    asyncio.run(body(World()))


def test_each_message_is_there_once_at_the_time_of_its_binding():
    """Damage: rows are missing, doubled or at another time."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 10, 11)
        assert await ingestion.tick(1000) == Advanced(Frontier(1001))
        assert await ingestion.step() == Advanced(Frontier(1001))
        world.upstream.produce("1", 20)
        assert await ingestion.step() == Idle()  # it is not bound yet
        await ingestion.tick(2000)
        await ingestion.catch_up()
        assert await world.updates() == {
            ("0", 0, 10, None, 1000): 1,
            ("0", 1, 11, None, 1000): 1,
            ("1", 0, 20, None, 2000): 1,
        }
        assert (ingestion.status.durable_records, ingestion.status.reread_records) == (3, 0)

    run(body)


def test_a_tick_without_messages_costs_no_job_and_still_moves_the_upper():
    """Damage: an idle source holds every view back, or costs a job a second."""

    async def body(world):
        ingestion = await world.open()
        for time in (1000, 2000):
            await ingestion.tick(time)
            await ingestion.catch_up()
        assert ingestion.upper == Frontier(2001)
        assert (ingestion.engine.staged, ingestion.reader.reads) == (0, [])

    run(body)


def test_several_bindings_in_one_step_give_the_updates_of_several_steps():
    """Law D.  Damage: two replicas that batch differently correct each other for ever."""

    async def body(world):
        ingestion = await world.open()
        for time in (1000, 2000, 3000):
            world.upstream.produce(str(time % 2000), time, None)
            await ingestion.tick(time)
        assert await ingestion.step() == Advanced(Frontier(3001))
        assert await world.updates() == await world.expected()
        other = World()
        ingestion = await other.open()
        for time in (1000, 2000, 3000):
            other.upstream.produce(str(time % 2000), time, None)
            await ingestion.tick(time)
            await ingestion.step()
        assert await other.updates() == await world.updates()

    run(body)


def test_an_undecodable_message_is_located_and_the_others_flow():
    """Damage: one bad message stops the source, vanishes, or cannot be found."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 1, None, 3)
        await ingestion.tick(1000)
        await ingestion.step()
        assert await world.updates() == {
            ("0", 0, 1, None, 1000): 1,
            (None, None, None, undecodable("0", 1), 1000): 1,
            ("0", 2, 3, None, 1000): 1,
        }
        assert ingestion.status.error_records == 1
        assert (ingestion.status.read_records, ingestion.status.reread_records) == (3, 0)  # not once for each pass
        assert (ingestion.engine.staged, ingestion.engine.discarded) == (2, 1)  # the provisional batch was given back

    run(body)


def test_the_predecessor_of_the_durable_upper_is_committed_upstream():
    """Law R4.  Damage: upstream forgets what a restart needs; or never forgets."""

    async def body(world):
        ingestion = await world.open()
        assert world.upstream.forgotten == NOTHING_READ
        world.upstream.produce("0", 1, 2)
        await ingestion.tick(1000)
        world.clock.now += PERIOD_MS
        await ingestion.step()
        assert world.upstream.forgotten == Offsets({"0": 2}) == ingestion.status.resume
        world.upstream.produce("0", 3)
        await ingestion.tick(2000)
        assert world.upstream.forgotten == Offsets({"0": 2})  # bound, not durable

    run(body)


def test_a_restart_reads_again_only_what_was_bound_and_not_durable():
    """Damage: a restart reads the whole upstream again, or takes for durable what no process wrote."""

    async def body(world):
        first = await world.open()
        world.upstream.produce("0", 1, 2)
        await first.tick(1000)
        await first.step()
        world.upstream.produce("0", 3, 4, 5)
        await first.tick(2000)  # bound; its process ends before the step
        world.upstream.produce("0", 6)
        second = await world.open()
        await second.tick(3000)
        await second.catch_up()
        assert second.reader.reads == [("0", 2), ("0", 3), ("0", 4), ("0", 5)]
        assert (second.status.read_records, second.status.reread_records) == (4, 3)
        assert await world.updates() == await world.expected()

    run(body)


def test_a_tick_whose_probe_fails_binds_nothing():
    """Damage: the source says it is complete at a time at which no process could see its upstream."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 1)
        world.upstream.down = True
        outcome = await ingestion.tick(1000)
        assert isinstance(outcome, Stalled)
        assert isinstance(outcome.error, Unavailable)
        assert "does not answer" in ingestion.status.stalled
        assert await ingestion.step() == Idle()
        assert ingestion.upper == Frontier(0)
        world.upstream.down = False
        await ingestion.tick(2000)
        assert await ingestion.catch_up() == Idle()
        assert ingestion.status.stalled == ""
        assert set(await world.updates()) == {("0", 0, 1, None, 2000)}

    run(body)


def test_what_was_bound_before_is_read_and_the_reason_for_standing_still_stays():
    """Damage: `status` says that a source stands still, and not why."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 1)
        await ingestion.tick(1000)
        world.upstream.partitions, gone = {"0": []}, world.upstream.partitions
        assert isinstance(await ingestion.tick(2000), Stalled)
        world.upstream.partitions = gone
        await ingestion.catch_up()
        assert "went back" in ingestion.status.stalled

    run(body)


def test_a_step_whose_read_fails_appends_nothing_and_is_counted_when_it_is_done_again():
    """Damage: a gap inside a time that is said to be complete."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 1)
        await ingestion.tick(1000)
        world.upstream.down = True
        assert isinstance(await ingestion.step(), Stalled)
        assert ingestion.upper == Frontier(0)
        world.upstream.down = False
        await ingestion.catch_up()
        assert ingestion.status.reread_records == 1
        assert await world.updates() == await world.expected()

    run(body)


def test_an_upstream_that_went_back_stalls_the_source():
    """Damage: a topic that was created anew is read as if it went on; its first messages are skipped."""

    async def body(world):
        ingestion = await world.open()
        world.upstream.produce("0", 1, 2)
        await ingestion.tick(1000)
        await ingestion.catch_up()
        world.upstream.partitions = {"0": [7]}
        outcome = await ingestion.tick(2000)
        assert isinstance(outcome, Stalled)
        assert isinstance(outcome.error, SourceError)
        assert "went back" in ingestion.status.stalled

    run(body)


def test_two_instances_of_one_epoch_write_each_message_once():
    """Damage: an active pair doubles every row."""

    async def body(world):
        first, second = await world.open(), await world.open()
        world.upstream.produce("0", 1, None)
        await first.tick(1000)
        await second.tick(1000)
        await first.tick(1500)
        steps = second._steps[""]
        staged = await steps._stage(
            second._remap.remap.slices(Frontier(0), Frontier(1001)), Frontier(0), Frontier(1001), again=False
        )
        await first.catch_up()
        assert await steps._append([staged], Frontier(0), Frontier(1001)) == Advanced(Frontier(1501))
        world.upstream.produce("0", 3)
        await second.tick(2000)
        await second.catch_up()
        assert await world.updates() == await world.expected()

    run(body)


def test_a_fenced_ingestion_stops_and_deletes_nothing():
    """Damage: a zombie writes beside its successor, or deletes parts that it has appended and does not know of."""

    async def body(world):
        zombie = await world.open(epoch=1)
        world.upstream.produce("0", 1)
        await zombie.tick(1000)
        successor = await world.open(epoch=2)
        with pytest.raises(FencedError, match="taken over"):
            await zombie.step()
        with pytest.raises(FencedError, match="taken over"):
            await zombie.tick(2000)
        assert (zombie.engine.staged, zombie.engine.discarded) == (1, 0)
        await successor.catch_up()
        assert await world.updates() == await world.expected()

    run(body)


def test_data_beyond_the_remap_are_refused_by_name():
    """Damage: a remap restored from an older copy gives messages that are durable a second time."""

    async def body(world):
        data = await world.client().writer("data", 1, schema=SCHEMA.ddl)
        await data.compare_and_append([], Frontier(0), Frontier(5))
        with pytest.raises(CorruptionError, match=r"'data'.*'remap'"):
            await world.open()

    run(body)


# ---- crashes ---------------------------------------------------------------------------------------------------------

WITHOUT_ERRORS = (("0", 1, 2), ("1", 3, 4), ("0",), ("0", 5))
WITH_ERRORS = (("0", 1, 2), ("1", None, 4), ("0",), ("0", 5))
MESSAGES = 5


async def work(world, ingestion, script):
    """Do what is left of the script: produce, tick, and catch up every second time."""
    for number, (partition, *values) in enumerate(script):
        if number == world.produced:
            world.upstream.produce(partition, *values)
            world.produced += 1
        await ingestion.tick(1000 * (number + 1))
        world.clock.now += PERIOD_MS
        if number % 2:
            await ingestion.catch_up()


async def crash_once(fuse, script, kind=Ingestion):
    """Run the script in a process that ends when the fuse burns, then in one that does not.

    Return the world, the successor, and what was durable and what was bound when the successor began.
    """
    world = World()
    world.produced = 0
    with suppress(Crash):
        await work(world, await world.open(fuse=fuse, kind=kind), script)
    durable, bound = await world.updates(), await world.expected()
    successor = await world.open(epoch=2, kind=kind)
    await work(world, successor, script)
    await successor.catch_up()
    return world, successor, durable, bound


def ios(script):
    """How many I/Os the script takes when nothing fails."""
    fuse = Fuse()
    asyncio.run(crash_once(fuse, script))
    return fuse.count


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("script", [WITHOUT_ERRORS, WITH_ERRORS], ids=["decodable", "undecodable"])
def test_a_crash_at_any_io_loses_and_doubles_nothing(script, after):
    """Laws R1 to R4.  Damage: exactly once holds only as long as nothing fails."""

    async def one(at):
        world, successor, durable, bound = await crash_once(Fuse(at, after=after), script)
        assert await world.updates() == await world.expected(), at
        assert (await world.updates()).total() == MESSAGES, at
        # Bounded input reliance: what was durable is not read again; what was bound and not durable is, and is counted.
        if script is WITHOUT_ERRORS:
            assert len(successor.reader.reads) == MESSAGES - durable.total(), at
            assert successor.status.reread_records == bound.total() - durable.total(), at

    count = ios(script)
    assert count > 30
    for at in range(1, count + 1):
        asyncio.run(one(at))


class OneTooFar(ResumptionFrontier):
    """Tells upstream of the durable upper's own binding instead of its predecessor's."""

    async def _advance(self, *, wait):
        await self._durable()
        await self._reader.commit(self._remap.remap.offsets_at(self._meet().at + 999))


class ResumesOneTooFar(Ingestion):
    """Planted: lets upstream forget what is bound and not durable."""

    def __init__(self, clock, engine, reader, remap, outputs, patience, name):
        super().__init__(clock, engine, reader, remap, outputs, patience, name)
        self._resumption = OneTooFar(clock, reader, remap, [each.data for each in outputs], self._upstream)


class DataFirst(Ingestion):
    """Planted: makes data durable first, and binds their time afterwards, with another look at upstream."""

    async def tick(self, time):
        offsets = await self._reader.upstream_frontier()
        before = self._remap._remap
        self._remap._remap = before.mint(time, offsets)
        await self.step()
        self._remap._remap = before
        return await super().tick(time)


@pytest.mark.parametrize("kind", [ResumesOneTooFar, DataFirst])
def test_a_planted_bug_is_found_by_some_crash(kind):
    """Damage: the test above could not fail."""

    async def found(at):
        try:
            world, *_ = await crash_once(Fuse(at), WITHOUT_ERRORS, kind)
            return await world.updates() != await world.expected()
        except CorruptionError:
            return True

    assert any(asyncio.run(found(at)) for at in range(1, ios(WITHOUT_ERRORS) + 1))


moves = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.none() | st.integers(0, 3), max_size=3), st.booleans()), max_size=6
)


@settings(max_examples=60)
@given(moves)
def test_any_grouping_of_ticks_into_steps_gives_the_definition(moves):
    """Laws R2, D.  Damage: contents depend on how busy the machine was."""

    async def body(world):
        ingestion = await world.open()
        for number, (partition, values, steps) in enumerate(moves):
            world.upstream.produce(partition, *values)
            await ingestion.tick(number + 1)
            if steps:
                await ingestion.catch_up()
        await ingestion.catch_up()
        assert await world.updates() == await world.expected()

    run(body)


class Forgetful(ListReader):
    """A reader that refuses to go on where upstream forgot what it does not know to be durable."""

    forgotten = 0
    durable = NOTHING_READ

    async def upstream_frontier(self):
        if not self.durable.covers("p", self.forgotten - 1) and self.forgotten:
            raise SourceError(f"messages before {self.forgotten} were deleted before they were read")
        return await super().upstream_frontier()

    async def commit(self, resume):
        self.durable = self.durable.join(resume)


def test_what_another_replica_made_durable_is_not_missed_when_upstream_answers_again():
    """Damage: a replica that was cut off from the brokers for a day refuses a source that misses nothing."""

    async def body():
        world = World()
        world.upstream.produce("p", "a")
        first, second = await world.open(), await world.open(reader=Forgetful(world.upstream))
        for time in (1, 2):
            await first.tick(time)
            await first.catch_up()
        second.reader.forgotten = 1
        world.clock.now += PERIOD_MS
        assert isinstance(await second.tick(3), Stalled)
        assert isinstance(await second.tick(4), Advanced)

    asyncio.run(body())
