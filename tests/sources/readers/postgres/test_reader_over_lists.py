"""The PostgreSQL reader over a server in memory: what a slot, a snapshot and a crash may do to it."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count

import pytest
from msgspec import structs

from strandline.algebra.messages import GONE
from strandline.algebra.schema import DIFF, ERROR, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.sources.ingest import Ingestion
from strandline.sources.reader import Keyed, TakenBack
from strandline.sources.readers.postgres.kind import opened, released
from strandline.sources.readers.postgres.ledger import Ledger, SlotNote, TableNote
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.readers.postgres.server import SlotStanding
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, Idle, OutputShard, Stalled
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.postgres.list_postgres import ListDatabase, ListServer, delete, insert, update

SCHEMA = Schema((Column("id", "int"), Column("n", "int"), Column("v", "string")))
PROCESSES = count()


class Place:
    """A database in memory, a location, and readers of them."""

    table = "public.t"

    def __init__(self, identity=Identity.DEFAULT):
        self.database, self.numbers = ListDatabase(), count(1)
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.engine = ListEngine(self.blob)
        self.schemas = {self.table: SCHEMA}
        for name in "tu":
            self.database.create(name, identity, id="*integer", n="text", v="text")
        self.database.commit(insert("t", (b"0", b"0", b"at first")))

    async def ledger(self):
        client = PersistClient(HandClock(), CountingIds(f"p{next(PROCESSES)}"), self.blob, self.consensus)
        return await Ledger.open(await client.records("ledger", 1), 1)

    async def reader(self, **options):
        given = PostgresOptions(user="u", publication="p", **options)
        server = ListServer(self.database)
        reader = await opened(server, self.engine, await self.ledger(), self.schemas, given, "s", item="s")
        reader.server = server
        return reader

    async def produce(self, *, undecodable=False):
        n = str(next(self.numbers)).encode()
        first = (n + b"0", n, b"a")
        self.database.commit(
            insert("t", first), insert("t", (n + b"1", b"x" if undecodable else n, None)),
            update("t", first, (n + b"0", n, b"b")),
        )  # fmt: skip

    async def break_promise(self):
        self.database.slot = SlotStanding("pgoutput", "d", self.database.at)


@pytest.fixture(params=[Identity.DEFAULT, Identity.FULL], ids=["keyed", "full"])
def place(request):
    """A database of tables with the identity."""
    return Place(request.param)


class TestPostgresReader(ReaderContract):
    @pytest.fixture(params=[Identity.DEFAULT, Identity.FULL], ids=["keyed", "full"])
    def place(self, request):
        return Place(request.param)

    def test_a_broken_promise_is_an_error_and_never_other_rows(self, place):
        """Damage: a bound range is read with other contents, silently."""

        async def body():
            reader = await place.reader()
            begun = (await self.whole(place, reader)).upper
            await place.produce()
            announced = Slice(7, begun, await reader.upstream_frontier())
            wanted = await self.found(place, reader, announced)
            await place.break_promise()
            assert await self.found(place, reader, announced) == wanted, "it has them already"
            await place.produce()
            await reader.upstream_frontier()
            assert await self.found(place, reader, announced) == wanted, "what comes later takes no place of theirs"
            with pytest.raises(SourceError, match="has moved to"):
                await self.found(place, await place.reader(), announced)

        self.run(body())


async def rows(place, reader, *slices, table="public.t"):
    """The records of slices, without what is None."""
    found = listed(await reader.read(slices, table=table, locate=True)).rows
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def test_large_rows_are_handed_on_some_at_a_time_and_not_collected(place, monkeypatch):
    """Damage: a step of few rows of a megabyte each holds all of them in memory, or has one process collect them."""
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_BYTES", 4_000)
    monkeypatch.setattr("strandline.sources.readers.postgres.reader.SMALL_BYTES_MAX", 20_000)
    sizes, arrivals = [], place.engine.arrivals

    @contextmanager
    def weighed(schema, *, keyed):
        with arrivals(schema, keyed=keyed) as into:
            add = into.add
            into.add = lambda table: (sizes.append(table.nbytes), add(table))
            yield into

    place.engine.arrivals = weighed

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        sizes.clear()
        place.database.commit(*(insert("t", (str(n).encode(), b"1", b"a" * 1_000)) for n in range(1, 101)))
        whole = Slice(2, begun, await reader.upstream_frontier())
        found = await rows(place, reader, whole)
        assert sorted(row["id"] for row in found) == [*range(1, 101)]
        assert {row["__time"] for row in found} == {2}, "a transaction is whole at one time"
        assert len(sizes) >= 20
        assert max(sizes) <= 3 * 4_000
        assert not reader.likely_small([whole])
        place.database.commit(insert("t", (b"101", b"1", b"a")))
        after = Slice(3, whole.upper, await reader.upstream_frontier())
        assert len(await rows(place, reader, after)) == 1
        assert reader.likely_small([after])

    asyncio.run(body())


def test_a_server_that_is_down_is_asked_again(place):
    """Damage: an outage stops the source, or half of what a peek sent is taken for all."""

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        await place.produce()
        peek = reader.server.peek

        async def half(start, upto, changes, take):
            await peek(start, upto, changes, lambda messages: take(messages[:1]))
            raise Unavailable("the connection is lost")

        reader.server.peek = half
        with pytest.raises(Unavailable):
            await reader.upstream_frontier()
        reader.server.peek = peek
        place.database.down = True
        with pytest.raises(Unavailable):
            await reader.upstream_frontier()
        place.database.down = False
        found = await rows(place, reader, Slice(2, begun, await reader.upstream_frontier()))
        assert len(found) == (3 if place.database.tables["t"].identity is Identity.DEFAULT else 4)

    asyncio.run(body())


def test_a_slot_that_stepped_back_repeats_nothing(place):
    """Damage: a server lost what it had acknowledged, and changes that are durable are read again."""

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        first = place.database.slot
        await place.produce()
        upper = await reader.upstream_frontier()
        await reader.commit(upper)
        place.database.slot, sent = first, place.database.sent
        place.database.idle()
        later = Slice(3, upper, await reader.upstream_frontier())
        assert (place.database.sent, await rows(place, reader, later)) == (sent, [])

    asyncio.run(body())


def test_a_slot_of_another_kind_or_lost_is_refused(place):
    """Damage: changes of another database are taken for ours."""

    async def body():
        for slot, why in (
            (SlotStanding("test_decoding", "d", 5), "is not one for pgoutput"),
            (SlotStanding("pgoutput", "e", 5), "is not one for pgoutput"),
            (SlotStanding("pgoutput", "d", 5, "its log was removed"), "is lost: its log was removed"),
        ):
            place.database.slot = slot
            await (await place.ledger()).write(SlotNote("s", "1", "d", made=True))
            with pytest.raises(SourceError, match=why):
                await (await place.reader()).upstream_frontier()

    asyncio.run(body())


def test_a_slot_that_was_made_and_not_noted_is_adopted_and_a_strangers_is_not(place):
    """Damage: a crash between making the slot and noting it leaves a slot that no source reads, and holds the log."""

    async def body():
        place.database.slot = SlotStanding("pgoutput", "d", 5)
        with pytest.raises(SourceError, match="is there already"):
            await (await place.reader()).upstream_frontier()
        place.database.slot = None
        create = ListServer.create_slot

        async def dies(server):
            await create(server)
            raise KeyboardInterrupt

        reader = await place.reader()
        reader.server.create_slot = lambda: dies(reader.server)
        with pytest.raises(KeyboardInterrupt):
            await reader.upstream_frontier()
        confirmed = place.database.slot.confirmed
        await place.produce()
        second = await place.reader()
        await second.upstream_frontier()
        assert place.database.slot.confirmed == confirmed

    asyncio.run(body())


def test_a_large_value_that_stayed_is_said_and_never_invented():
    """Damage: an update of another column makes a large value NULL."""

    async def body():
        place = Place()
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        old, new = (b"0", b"0", b"at first"), (b"0", b"1", b"at first")
        place.database.commit(update("t", old, new, kept=[2]))
        place.database.commit(update("t", new, (b"9", b"1", b"at first"), kept=[2]))
        kept, gone, moved = await rows(place, reader, Slice(2, begun, await reader.upstream_frontier()))
        assert (kept["__kept"], "v" in kept) == (["v"], False)
        assert (gone["id"], gone[GONE], moved["id"]) == (0, True, 9)
        assert "REPLICA IDENTITY FULL" in moved[ERROR]

    asyncio.run(body())


def test_a_table_that_is_created_anew_is_read_as_it_is_then():
    """Damage: what was known of a dropped table decides how its successor is read, and what to do does not help."""

    async def body():
        place = Place()
        assert (await place.reader()).records("public.t") == Keyed(("id",))
        place.schemas = {}
        await place.reader()
        table = place.database.tables["t"]
        place.database.tables["t"] = replace(table, identity=Identity.FULL)
        place.schemas = {"public.t": SCHEMA}
        assert (await place.reader()).records("public.t") == TakenBack()
        place.schemas = {"public.t": Schema((Column("n", "int"),))}
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        (row,) = await rows(place, reader, Slice(1, NOTHING_READ, begun))
        assert row["n"] == 0
        place.database.tables["t"] = table
        place.schemas = {"public.t": SCHEMA}
        reader = await place.reader()
        place.database.tables["t"] = replace(table, identity=Identity.FULL)
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        for each in (reader, await place.reader()):
            assert each.records("public.t") == TakenBack()
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        place.database.commit(delete("t", (b"0", b"0", b"at first")))
        (row,) = await rows(place, reader, Slice(2, begun, await reader.upstream_frontier()))
        assert row[DIFF] == -1

    asyncio.run(body())


def test_a_table_takes_no_rows_from_a_snapshot_that_is_not_its_own(place):
    """Damage: rows of a later snapshot stand at an earlier time, and come once more with the changes between."""

    async def body():
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        reader = await place.reader()
        await reader.snapshot("public.t")
        begun = (await reader.snapshot("public.u")).join(await reader.upstream_frontier())
        reader.server.snapshots[-1].lost = True
        with pytest.raises(Unavailable):
            await rows(place, reader, Slice(1, NOTHING_READ, begun))
        place.database.commit(insert("u", (b"1", b"1", b"later")))
        await reader.snapshot("public.t")
        with pytest.raises(Unavailable, match="was lost"):
            await rows(place, reader, Slice(1, NOTHING_READ, begun), table="public.u")
        await reader.snapshot("public.u")
        with pytest.raises(Unavailable, match="was lost"):
            await rows(place, reader, Slice(1, NOTHING_READ, begun), table="public.u")
        upper = await reader.upstream_frontier()
        assert [row["n"] for row in await rows(place, reader, Slice(2, NOTHING_READ, upper), table="public.u")] == [1]

    asyncio.run(body())


def test_a_snapshot_that_the_slot_has_left_behind_makes_room_for_another(place):
    """Damage: a table asks to be dropped until a restart, though a new snapshot of it would be exact."""

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await place.produce()
        place.database.slot = replace(place.database.slot, confirmed=place.database.at)
        upper = await reader.upstream_frontier()
        with suppress(SourceError):
            await rows(place, reader, Slice(1, NOTHING_READ, upper))
        later = await reader.snapshot("public.t")
        assert later != begun
        upper = later.join(await reader.upstream_frontier())
        found = await rows(place, reader, Slice(1, NOTHING_READ, upper))
        assert sorted(row["id"] for row in found) == [0, 10, 11]

    asyncio.run(body())


def test_what_one_table_took_for_another_snapshot_no_other_table_takes_unasked(place):
    """Damage: a table that waits for a snapshot takes rows of the next one, which were not read as it is by then."""

    async def body():
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        reader = await place.reader()
        for table in place.schemas:
            await reader.snapshot(table)
        await place.produce()
        place.database.slot = replace(place.database.slot, confirmed=place.database.at)
        await reader.upstream_frontier()
        upper = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        with pytest.raises(Unavailable, match="was lost"):
            await rows(place, reader, Slice(1, NOTHING_READ, upper), table="public.u")
        assert await reader.snapshot("public.u") == upper
        assert await rows(place, reader, Slice(1, NOTHING_READ, upper), table="public.u") == []

    asyncio.run(body())


def test_another_table_under_the_same_name_stops_it(place):
    """Damage: changes of a table's successor are added to the rows of the one that was dropped."""

    async def body():
        database, identity = place.database, place.database.tables["t"].identity
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        database.create("t", identity, id="*integer", n="text", v="text")
        database.commit(insert("t", (b"7", b"7", b"the successor's")))
        later = Slice(2, begun, await reader.upstream_frontier())
        for each in (reader, await place.reader()):
            with pytest.raises(SourceError, match="made anew.*strandline anew public.t"):
                await rows(place, each, later)
        later = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, later))
        database.commit(insert("t", (b"8", b"8", b"the successor's")))
        (row,) = await rows(place, reader, Slice(2, later, await reader.upstream_frontier()))
        assert row["n"] == 8, "a table that begins now begins with the successor"

    asyncio.run(body())


def test_a_note_without_a_tables_number_is_read(place):
    """Damage: a source that an earlier version made cannot be opened, or stops."""

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        ledger = await place.ledger()
        await ledger.write(structs.replace(ledger.tables["public.t"], oid=None))
        await place.produce()
        second = await place.reader()
        found = await rows(place, second, Slice(2, begun, await second.upstream_frontier()))
        assert found

    asyncio.run(body())


@pytest.mark.parametrize(
    ("table", "schema", "why"),
    [
        ("public.w", SCHEMA, r"does not have public\.w; add it there: ALTER PUBLICATION p ADD TABLE public\.w"),
        ("public.u", Schema((*SCHEMA, Column("w", "int"))), "table 'public.u' has no column w in the publication"),
        ("public.u", Schema((Column("n", "int"),)), "is kept by its key, of which id is not declared"),
    ],
)
def test_a_table_that_cannot_be_read_as_declared_stalls_alone_until_it_can_be(table, schema, why):
    """Damage: one wrong CREATE TABLE stops every table of its source, or it takes a restart to go on."""

    async def body():
        place = Place()
        place.schemas = {"public.t": SCHEMA}
        await place.reader()
        place.schemas |= {table: schema}
        reader = await place.reader()
        ingestion = await ingestion_of(place, reader)
        for time in range(3):
            await place.produce()
            assert isinstance(await ingestion.tick(time), Advanced)
            assert isinstance(await ingestion.catch_up("public.t"), Idle)
            assert isinstance(await ingestion.catch_up(table), Stalled)
        status = ingestion.status.outputs
        assert re.search(why, status[table].stalled)
        assert (status["public.t"].stalled, status["public.t"].upper) == ("", Frontier(3))
        assert len(reader.server.snapshots) == 1, "upstream keeps old rows for a table that cannot be read"
        ingestion = await ingestion_of(place, await place.reader())  # and so it is after a restart
        name = table.removeprefix("public.")
        place.database.create(name, Identity.FULL, id="integer", n="text", v="text", w="text")
        place.database.commit(insert(name, (b"7", b"7", b"seven", b"7")))
        await ingestion.tick(3)
        for each in place.schemas:
            assert isinstance(await ingestion.catch_up(each), Idle), ingestion.status.stalled
        place.database.commit(insert(name, (b"8", b"8", b"eight", b"8")))
        await place.produce()
        await ingestion.tick(4)
        for each in place.schemas:
            assert isinstance(await ingestion.catch_up(each), Idle), ingestion.status.stalled
        assert (ingestion.status.outputs[table].durable_records, ingestion.upper) == (2, Frontier(5))

    asyncio.run(body())


async def ingestion_of(place, reader):
    """The ingestion of all tables, and what holds each."""
    client = PersistClient(HandClock(), CountingIds(f"p{next(PROCESSES)}"), place.blob, place.consensus)
    remap = await RemapShard.open(await client.records("remap", 1), 1)
    data = {table: await client.writer(table, 1, schema=schema.ddl) for table, schema in place.schemas.items()}
    outputs = [OutputShard(table, place.schemas[table], each) for table, each in data.items()]
    return await Ingestion.open(client.clock, place.engine, reader, remap, outputs, name="s")


@pytest.mark.parametrize("now", [Identity.DEFAULT, Identity.FULL])
def test_a_table_that_begins_anew_takes_the_identity_that_it_has_now(place, now):
    """Damage: the only table of a source, dropped and created here, stands still until a restart."""

    async def body():
        await place.reader()  # it notes the table as it was; with its last table, the source is closed
        place.database.commit(delete("t", (b"0", b"0", b"at first")))
        place.database.create("t", now, id="*integer", n="text", v="text")
        place.database.commit(insert("t", (b"0", b"0", b"new")))
        reader = await place.reader()
        ingestion = await ingestion_of(place, reader)
        for time, row in enumerate([(b"0", b"1", b"a"), (b"1", b"0", b"b")]):
            assert isinstance(await ingestion.tick(time), Advanced)
            assert isinstance(await ingestion.catch_up("public.t"), Idle), ingestion.status.stalled
            old = next(row for row in place.database.contents(place.database.at)["t"])
            place.database.commit(update("t", old, row))
        await ingestion.tick(2)
        await ingestion.catch_up("public.t")
        output = ingestion.status.outputs["public.t"]
        assert (ingestion.status.stalled, output.error_records, output.durable_records) == ("", 0, 5)

    asyncio.run(body())


def test_a_backlog_that_is_bound_is_never_upstream_gone_back(place):
    """Damage: after a restart the source stands still, for ever long if all its tables are still at their snapshot."""

    async def body():
        ingestion = await ingestion_of(place, await place.reader())
        await ingestion.tick(0)
        for time in (1, 2, 3):
            await place.produce()
            await ingestion.tick(time)
        second = await ingestion_of(place, await place.reader(step_changes=1))
        for time in (4, 5):
            assert isinstance(await second.tick(time), Advanced), second.status.stalled
        await second.catch_up("public.t")
        assert (second.status.stalled, second.status.outputs["public.t"].durable_records) == ("", 7)
        place.database.at, place.database.log = 101, []
        third = await ingestion_of(place, await place.reader())
        await third.tick(6)
        assert "went back to 0/65, and the source has read up to 0/" in third.status.stalled

    asyncio.run(body())


def test_changes_before_the_one_that_stops_a_table_become_durable(place):
    """Damage: a table that stops lacks rows that upstream had at a time before, if a few ticks were taken in one go."""

    async def body():
        database, table = place.database, place.database.tables["t"]
        ingestion = await ingestion_of(place, await place.reader())
        await ingestion.tick(0)
        await ingestion.catch_up("public.t")
        for time in (1, 2):
            await place.produce()
            await ingestion.tick(time)
        *others, last = table.columns
        database.tables["t"] = replace(table, columns=(*others, replace(last, type_oid=1082, type_name="date")))
        database.commit(insert("t", (b"7", b"7", b"2026-11-24")))
        await ingestion.tick(3)
        assert isinstance(await ingestion.catch_up("public.t"), Stalled)
        assert "was of type text and no longer is" in ingestion.status.stalled
        assert ingestion.upper == Frontier(3)

    asyncio.run(body())


def test_a_table_that_stopped_makes_no_tick_dearer(place):
    """Damage: a stopped table holds the slot, and each tick reads all changes since then again."""

    async def body():
        database, table = place.database, place.database.tables["u"]
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        ingestion, costs = await ingestion_of(place, await place.reader(step_changes=20)), []
        await ingestion.tick(0)
        for each in place.schemas:
            await ingestion.catch_up(each)
        *others, last = table.columns
        database.tables["u"] = replace(table, columns=(*others, replace(last, type_oid=1082, type_name="date")))
        database.commit(insert("u", (b"7", b"7", b"2026-11-24")))
        for time in range(1, 30):
            before = database.sent
            await place.produce()
            assert isinstance(await ingestion.tick(time), Advanced)
            assert isinstance(await ingestion.catch_up("public.t"), Idle), ingestion.status.stalled
            assert isinstance(await ingestion.catch_up("public.u"), Stalled)
            costs.append(database.sent - before)
        assert len({*costs[1:]}) == 1, costs
        assert costs[0] > costs[1], "the first has the change that stops the table besides"
        assert ingestion.status.outputs["public.t"].upper == Frontier(30)

    asyncio.run(body())


def test_two_ledgers_agree_and_the_newest_note_counts(place):
    """Damage: after a restart another slot is made, or a table is read by another key."""

    async def body():
        first, second = await place.ledger(), await place.ledger()
        slot, note = SlotNote("s", "1", "d", made=True), TableNote("t", ("id",), (), "d")
        await first.write(slot)
        await second.write(note)
        await second.write(slot)
        await first.write(TableNote("t", None, (), "d"))
        await second.refresh()
        for each in (first, second, await place.ledger()):
            await each.refresh()
            assert (each.slot, each.tables) == (slot, {"t": TableNote("t", None, (), "d")})

    asyncio.run(body())


def test_a_publication_that_is_seen_late_stops_the_table(place):
    """Damage: a change of the publication is in the log and, for a moment, in no catalog: what it hid is missing."""

    async def body():
        database, reader = place.database, await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        before, look = database.published("t"), reader.server.standing
        database.leave("t")
        await place.produce()
        database.join("t")
        looks = count()

        async def late(tables):
            standing = await look(tables)
            return standing if next(looks) else replace(standing, published={("public", "t"): before})

        reader.server.standing = late
        upper = await reader.upstream_frontier()
        with pytest.raises(SourceError, match="strandline anew"):
            await rows(place, reader, Slice(2, begun, upper))

    asyncio.run(body())


@pytest.mark.parametrize("what", ["bound", "reached", "confirmed"])
def test_a_server_that_lost_log_that_was_read_is_a_definite_error(place, what):
    """Damage: a standby that was behind takes over, and what it writes at the same positions is passed over."""

    async def body():
        database, reader = place.database, await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        await place.produce()
        upper = await reader.upstream_frontier()
        database.at, database.log = database.at - 4, []
        if what == "confirmed":
            database.slot = replace(database.slot, confirmed=upper[PARTITION])
        if what != "reached":
            reader = await place.reader()
        if what == "bound":
            reader.bound(upper)
        with pytest.raises(SourceError, match="lost log that was read.*strandline anew s"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_a_peek_that_was_cancelled_adds_nothing_afterwards(place):
    """Damage: the thread of a cancelled peek goes on, and its changes stand in the log twice."""

    async def body():
        reader = await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        for _ in range(3):
            await place.produce()
        peek, late = reader.server.peek, []

        async def cancelled(start, upto, changes, take):
            given = []
            await peek(start, upto, changes, given.append)
            take(given[0])
            late.extend((take, messages) for messages in given[1:])
            raise asyncio.CancelledError

        reader.server.peek = cancelled
        with pytest.raises(asyncio.CancelledError):
            await reader.upstream_frontier()
        reader.server.peek = peek
        for take, messages in late[:2]:
            with pytest.raises(Unavailable, match="was given up"):
                take(messages)
        later = Slice(2, begun, await reader.upstream_frontier())
        for take, messages in late[2:]:
            with pytest.raises(Unavailable, match="was given up"):
                take(messages)
        whole = await place.reader()
        await whole.upstream_frontier()
        assert await rows(place, reader, later) == await rows(place, whole, later)

    asyncio.run(body())


@pytest.mark.parametrize("made", [True, False])
def test_the_slot_of_a_dropped_source_is_dropped_if_it_is_its_own(place, made):
    """Damage: a dropped source keeps the server's log for ever, or takes the slot of another one with it."""

    async def body():
        database, reader = place.database, await place.reader()
        await reader.upstream_frontier()
        note = structs.replace(reader._ledger.slot, made=made)
        database.down = True
        left = await released(reader.server, note, (), "the server", HandClock())
        assert re.match("replication slot 's' is left on the server.*does not answer", left)
        database.down = False
        left = await released(reader.server, structs.replace(note, system="2"), (), "the server", HandClock())
        assert re.match("replication slot 's' is left on the server.*another database answers", left)
        assert database.slot is not None
        for _ in range(2):
            assert await released(reader.server, note, (), "the server", HandClock()) == ""
            assert database.slot is None

    asyncio.run(body())


def test_a_slot_that_another_source_has_made_by_the_same_name_is_left_to_it(place):
    """Damage: an environment that opens drops the slot of a living source, and its tables must be read anew."""

    async def body():
        database, reader = place.database, await place.reader()
        await reader.upstream_frontier()
        note = reader._ledger.slot
        assert await released(reader.server, note, [note], "the server", HandClock()) == ""
        assert database.slot is not None
        for other in (structs.replace(note, system="2"), structs.replace(note, name="another")):
            await reader.server.create_slot()
            assert await released(reader.server, note, [other], "the server", HandClock()) == ""
            assert database.slot is None

    asyncio.run(body())
