"""Outputs of one source: each begins with a snapshot, steps by itself, and has each message once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import contents
from strandline.persist.handles.records import RecordShard
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.reader import Keyed
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, Idle, OutputShard, Stalled
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, Crash, Fuse, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.upstreams.list_tables import SCHEMA, Change, Tables, TablesReader

TABLES = ("accounts", "owners")


class Bank:
    """A location, an upstream with two tables, and the incarnations of one ingestion."""

    def __init__(self):
        self.clock, self.upstream = HandClock(), Tables()
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.opened = 0
        self.upstream.produce("log", Change("accounts", 1, 100), Change("owners", 1, 7))
        self.upstream.begin_log()

    def client(self, fuse=None):
        self.opened += 1
        fuse = fuse or Fuse()
        ids = CountingIds(f"p{self.opened}")
        return PersistClient(self.clock, ids, fuse.guard(self.blob), fuse.guard(self.consensus))

    async def open(self, tables=TABLES, *, epoch=1, fuse=None):
        fuse = fuse or Fuse()
        client = self.client(fuse)
        remap = await RemapShard.open(await client.records("remap", epoch), epoch)
        outputs = [OutputShard(table, SCHEMA, await client.writer(table, epoch, schema=SCHEMA.ddl)) for table in tables]
        reader, engine = TablesReader(self.upstream), ListEngine(fuse.guard(self.blob))
        return await Ingestion.open(self.clock, engine, fuse.guard(reader), remap, outputs, name="s")

    async def tick(self, ingestion, time):
        self.clock.now += PERIOD_MS
        ticked = await ingestion.tick(time)
        for table in ingestion.tables:
            await ingestion.catch_up(table)
        return ticked

    async def at(self, table, time):
        """What ``table`` holds at ``time``."""
        reader = await self.client().reader(table, SCHEMA, table)
        if reader is None:
            return Counter()
        rows = await ListEngine(self.blob).read(contents(reader.state, SCHEMA, 0, time + 1, advance=0))
        found = Counter()
        for row in listed(rows).rows:
            found[row["key"], row["value"]] += row[DIFF] if row[TIME] <= time else 0
        return Counter({row: count for row, count in found.items() if count})

    async def remap(self):
        """What is bound, as a process that writes nothing sees it."""
        client = self.client()
        await client.reader("remap", SCHEMA, "remap")
        return (await RemapShard.open(RecordShard(client._machines["remap"], None, self.blob), 0)).remap


def run(body):
    """Run the coroutine function ``body`` in a fresh bank."""
    asyncio.run(body(Bank()))


def test_an_output_begins_with_its_snapshot_at_the_first_time_that_covers_it():
    """Damage: rows of before the source are missing, or doubled by the changes that the snapshot holds already."""

    async def body(bank):
        ingestion = await bank.open()
        bank.upstream.produce("log", Change("accounts", 1, 100, -1), Change("accounts", 1, 50), announce=False)
        await bank.tick(ingestion, 1000)
        assert await bank.at("accounts", 999) == {}
        assert await bank.at("accounts", 1000) == {(1, 50): 1}  # the binding covers more than was announced
        assert (await bank.remap()).offsets_at(1000) == bank.upstream.end()
        bank.upstream.produce("log", Change("accounts", 2, 10))
        await bank.tick(ingestion, 2000)
        assert await bank.at("accounts", 2000) == {(1, 50): 1, (2, 10): 1}
        assert await bank.at("owners", 2000) == {(1, 7): 1}
        assert ingestion.status.reread_records == 0

    run(body)


def test_a_time_that_another_instance_bound_before_the_snapshot_is_passed_over():
    """Damage: changes that come after a time are in what the collection held at it."""

    async def body(bank):
        first, second = await bank.open(("accounts",)), await bank.open(("owners",))
        await bank.tick(first, 1000)
        bank.upstream.produce("log", Change("owners", 2, 9))
        assert await second.step("owners") == Idle()  # its snapshot stands beyond what is bound
        assert second.status.outputs["owners"].snapshotting
        await bank.tick(second, 2000)
        assert not second.status.outputs["owners"].snapshotting
        assert (await bank.at("owners", 1999), await bank.at("owners", 2000)) == ({}, {(1, 7): 1, (2, 9): 1})

    run(body)


def test_a_snapshot_of_what_is_bound_already_is_taken_at_that_time():
    """Damage: a table that is added to a source at rest waits for a change, for ever."""

    async def body(bank):
        await bank.tick(await bank.open(("accounts",)), 1000)
        added = await bank.open()
        assert await added.step("owners") == Advanced(Frontier(1001))
        assert await bank.at("owners", 1000) == {(1, 7): 1}

    run(body)


def test_an_incarnation_that_ended_before_its_first_append_is_followed_by_another_snapshot():
    """Damage: the snapshot of a dead connection is waited for; or rows are there twice."""

    async def body(bank):
        first = await bank.open()
        await first.tick(1000)
        await first._steps["accounts"]._stage(  # it has read, and ends
            first._remap.remap.slices(Frontier(0), Frontier(1001)), Frontier(0), Frontier(1001), again=False
        )
        bank.upstream.produce("log", Change("accounts", 3, 30))
        second = await bank.open(epoch=2)
        await bank.tick(second, 2000)
        assert (await bank.at("accounts", 1999), await bank.at("owners", 1999)) == ({}, {})
        assert await bank.at("accounts", 2000) == {(1, 100): 1, (3, 30): 1}
        assert second.status.outputs["accounts"].reread_records == 2

    run(body)


def test_a_snapshot_that_is_lost_is_taken_again():
    """Damage: a connection that breaks while a table is copied stops the source for ever."""

    async def body(bank):
        ingestion = await bank.open()
        await ingestion.tick(1000)
        bank.upstream.connection += 1
        bank.upstream.produce("log", Change("accounts", 3, 30))
        assert isinstance(await ingestion.step("accounts"), Idle | Stalled)
        await bank.tick(ingestion, 2000)
        assert await bank.at("accounts", 2000) == {(1, 100): 1, (3, 30): 1}
        assert ingestion.status.stalled == ""

    run(body)


def test_an_empty_upstream_is_a_table_without_rows():
    """Damage: a table is never there because its upstream was empty when it was defined."""

    async def body(bank):
        bank.upstream = Tables()
        ingestion = await bank.open()
        await bank.tick(ingestion, 1000)
        assert ingestion.upper == Frontier(1001)
        bank.upstream.connection += 1
        bank.upstream.produce("log", Change("accounts", 3, 30))
        for time in (2000, 3000):
            await bank.tick(ingestion, time)
        assert await bank.at("accounts", 3000) == {(3, 30): 1}

    run(body)


def test_a_table_that_is_added_later_is_copied_while_the_others_go_on():
    """Damage: adding a table reads the others again, or loses what came while it was copied."""

    async def body(bank):
        first = await bank.open(("accounts",))
        await bank.tick(first, 1000)
        bank.upstream.produce("log", Change("owners", 2, 8), Change("accounts", 2, 20))
        await bank.tick(first, 2000)
        delivered = Counter(bank.upstream.delivered)
        both = await bank.open()
        bank.upstream.produce("log", Change("owners", 3, 9), Change("accounts", 3, 30))
        await both.tick(3000)
        await both.catch_up("accounts")
        assert both.status.outputs["owners"].snapshotting
        assert not both.status.outputs["accounts"].snapshotting
        await bank.tick(both, 4000)
        assert await bank.at("accounts", 4000) == {(1, 100): 1, (2, 20): 1, (3, 30): 1}
        assert await bank.at("owners", 4000) == {(1, 7): 1, (2, 8): 1, (3, 9): 1}
        assert both.status.reread_records == 0
        again = {place for place, n in bank.upstream.delivered.items() if n > delivered[place] > 0}
        assert again == set()

    run(body)


def test_an_output_that_stalls_holds_no_other_back():
    """Damage: one table that cannot be read stops all tables of its database."""

    async def body(bank):
        ingestion = await bank.open()
        reader, read = ingestion._reader._thing, TablesReader.read

        async def refuse(slices, *, table, locate):
            if table == "owners":
                raise SourceError("relation owners was dropped")
            return await read(reader, slices, table=table, locate=locate)

        reader.read = refuse
        await bank.tick(ingestion, 1000)
        status = ingestion.status
        assert status.stalled == status.outputs["owners"].stalled == "relation owners was dropped"
        assert status.outputs["accounts"].stalled == ""
        assert (status.outputs["accounts"].upper, ingestion.upper) == (Frontier(1001), Frontier(0))
        assert status.resume == NOTHING_READ
        del reader.read
        await bank.tick(ingestion, 2000)
        assert ingestion.status.stalled == ""
        assert await bank.at("owners", 2000) == {(1, 7): 1}

    run(body)


@pytest.mark.parametrize("bad", range(1, 9))
def test_what_is_before_the_first_bad_binding_becomes_durable(bad):
    """Law R5.  Damage: one change that stops a table holds back all that was bound with it."""

    async def body(bank):
        ingestion = await bank.open(("accounts",))
        await bank.tick(ingestion, 1000)
        reader, read, asked = ingestion._reader._thing, TablesReader.read, []

        async def refuse(slices, *, table, locate):
            asked.append(len(slices))
            if any(each.lower["log"] <= bad < each.upper["log"] for each in slices):
                raise SourceError("the log stops there")
            return await read(reader, slices, table=table, locate=locate)

        reader.read = refuse
        for number in range(1, 9):
            bank.upstream.produce("log", Change("accounts", number + 1, number))
            await ingestion.tick(1000 + number)
        for _ in range(2):
            assert isinstance(await ingestion.catch_up("accounts"), Stalled)
            assert ingestion.upper == Frontier(1000 + bad)
        assert (ingestion.status.stalled, asked[-1]) == ("the log stops there", 1), "a table that stops reads little"
        assert len(asked) < 20
        del reader.read
        await bank.tick(ingestion, 1009)
        assert (ingestion.upper, ingestion.status.stalled) == (Frontier(1010), "")
        remap = await bank.remap()
        for time in range(1000, 1010):
            assert await bank.at("accounts", time) == bank.upstream.held("accounts", remap.offsets_at(time))

    run(body)


def test_a_snapshot_that_upstream_refuses_stalls_its_output_alone():
    """Damage: nothing is bound for any table as long as one cannot be copied."""

    async def body(bank):
        ingestion = await bank.open()
        reader, snapshot = ingestion._reader._thing, TablesReader.snapshot

        async def refuse(table):
            if table == "owners":
                raise Unavailable("too many snapshots")
            return await snapshot(reader, table)

        reader.snapshot = refuse
        assert await bank.tick(ingestion, 1000) == Advanced(Frontier(1001))
        assert ingestion.status.outputs["owners"].stalled == "too many snapshots"
        assert await bank.at("accounts", 1000) == {(1, 100): 1}

    run(body)


def test_a_key_that_rows_cannot_have_stalls_its_output_alone():
    """Damage: one table with a key of arrays keeps all tables of its source from being opened."""

    async def body(bank):
        records, wrong = TablesReader.records, True
        monkeypatch.setattr(
            TablesReader,
            "records",
            lambda reader, table: Keyed(("no",)) if wrong and table == "owners" else records(reader, table),
        )
        ingestion = await bank.open()
        assert await bank.tick(ingestion, 1000) == Advanced(Frontier(1001))
        assert "'no'" in ingestion.status.outputs["owners"].stalled
        assert await bank.at("accounts", 1000) == {(1, 100): 1}
        wrong = False
        await bank.tick(ingestion, 2000)
        assert (ingestion.status.stalled, await bank.at("owners", 2000)) == ("", {(1, 7): 1})

    with pytest.MonkeyPatch.context() as monkeypatch:
        run(body)


SCRIPT = (
    ("log", Change("accounts", 2, 20), Change("owners", 2, 8)),
    ("other", Change("accounts", 3, 30)),
    ("log", Change("accounts", 2, 20, -1), Change("accounts", 2, 21)),
    ("other", Change("owners", 3, 9)),
)


async def work(bank, ingestion):
    """Do what is left of the script: produce, tick, catch up."""
    for number, (partition, *changes) in enumerate(SCRIPT):
        if number == bank.produced:
            bank.upstream.produce(partition, *changes)
            bank.produced += 1
        await bank.tick(ingestion, 1000 * (number + 1))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_io_loses_and_doubles_nothing(after):
    """Laws R1 to R4 over two outputs with snapshots.  Damage: exactly once holds only as long as nothing fails."""

    async def one(at):
        bank, fuse = Bank(), Fuse(at, after=after)
        bank.produced = 0
        with suppress(Crash):
            await work(bank, await bank.open(fuse=fuse))
        uppers = {}
        for table in TABLES:
            reader = await bank.client().reader(table, SCHEMA, table)
            uppers[table] = Frontier(0) if reader is None else reader.state.upper
        delivered = Counter(bank.upstream.delivered)
        successor = await bank.open(epoch=2)
        await work(bank, successor)
        remap = await bank.remap()
        for table in TABLES:
            for time in range(1000, 5000, 1000):
                held = await bank.at(table, time)
                begun = held or uppers[table].at
                assert held == (bank.upstream.held(table, remap.offsets_at(time)) if begun else {}), (at, table, time)
            assert held == bank.upstream.held(table, bank.upstream.end()), (at, table)
        twice = Counter(table for (table, *_), n in bank.upstream.delivered.items() for _ in range(n - 1))
        for table, status in successor.status.outputs.items():
            assert status.reread_records >= twice[table] or uppers[table].at, (at, table)
        durable = {p for p, n in bank.upstream.delivered.items() if n > delivered[p] > 0 and uppers[p[0]].at}
        assert {remap.time_of(*place[1:]) < uppers[place[0]].at for place in durable} <= {False}, at
        return fuse.count >= at

    at = 1
    while asyncio.run(one(at)):
        at += 1
    assert at > 60


moves = st.lists(
    st.tuples(st.sampled_from(["log", "other"]), st.sampled_from(TABLES), st.booleans(), st.booleans(), st.booleans()),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_however_outputs_step_each_holds_what_is_bound(moves):
    """Laws R2, D.  Damage: contents depend on how busy the machine was, or on when a partition was announced."""

    async def body(bank):
        ingestion = await bank.open()
        for number, (partition, table, announced, *steps) in enumerate(moves):
            bank.upstream.produce(partition, Change(table, number, number), announce=announced)
            await ingestion.tick(number + 1)
            for each, now in zip(TABLES, steps, strict=True):
                if now:
                    await ingestion.catch_up(each)
        await bank.tick(ingestion, len(moves) + 1)
        remap = await bank.remap()
        for table in TABLES:
            found = [await bank.at(table, time) for time in range(len(moves) + 2)]
            first = next(time for time, held in enumerate(found) if held or time == len(moves) + 1)
            assert not any(found[:first])
            for time in range(first, len(moves) + 2):
                assert found[time] == bank.upstream.held(table, remap.offsets_at(time))

    run(body)
