"""Slots on a real server: what holds one, what waits for one, and what is said of one that is lost or another's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, after, begin, refused, rows

from strandline.errors import Unavailable
from strandline.options import understood
from strandline.sources.readers.postgres import psycopg_server, statements
from strandline.sources.readers.postgres.kind import released
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.psycopg_server import parameters
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import SystemClock
from strandline.testing.doubles import HandClock

pytestmark = pytest.mark.server
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary ORDER BY 1"


def test_a_slot_that_a_session_reads_for_a_moment_is_dropped(place):
    """Damage: DROP SOURCE leaves a slot behind whenever a peek was under way."""

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        options = understood("s", PostgresOptions, {**place.database.options, "publication": "p"})
        given = dict(parameters(options))
        del given["options"]
        session = psycopg.connect(**given, autocommit=True, replication="database")
        begun = session.pgconn.exec_(
            f"START_REPLICATION SLOT {place.slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')".encode()
        )
        assert begun.status == psycopg.pq.ExecStatus.COPY_BOTH
        assert place.standing("active")
        ends = threading.Timer(1.0, session.close)
        ends.start()
        assert await released(reader._server, reader._ledger.slot, (), "the server", SystemClock()) == ""
        ends.join()
        assert place.database.run(SLOTS) == []

    asyncio.run(body())


def test_a_snapshot_that_waits_takes_no_thread_from_others(place, monkeypatch):
    """Damage: a long transaction upstream, and a few sources that wait for it, stop all that the process does."""

    async def body():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        reader = await place.reader()
        await reader.upstream_frontier()
        monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 0.3)
        with place.database.session() as session:
            session.execute("INSERT INTO t VALUES (1, '1', 'a')")
            async with asyncio.timeout(120):
                with pytest.raises(Unavailable, match="snapshot waits for transactions"):
                    await reader.snapshot(place.table)
                await reader.upstream_frontier()
        while reader._server._making:
            with suppress(Unavailable):
                await reader.snapshot(place.table)
        assert await begin(place, reader)


def test_a_snapshot_that_waits_for_a_prepared_transaction_names_it(place, monkeypatch):
    """Damage: a prepared transaction that was forgotten keeps a table from beginning, and nothing says what to end."""

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 0.3)
        place.database.run("BEGIN", "INSERT INTO t VALUES (1, '1', 'a')", "PREPARE TRANSACTION 'forgotten'")
        try:
            with pytest.raises(Unavailable, match="snapshot waits for.*'forgotten', which COMMIT PREPARED or ROLLBACK"):
                await reader.snapshot(place.table)
        finally:
            place.database.run("COMMIT PREPARED 'forgotten'")
        while reader._server._making:
            with suppress(Unavailable):
                await reader.snapshot(place.table)
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0, 1]

    asyncio.run(body())


def test_a_snapshot_does_not_wait_for_ever_for_what_the_server_does_not_show(place, monkeypatch):
    """Damage: a standby that never answers keeps a snapshot open upstream, and no message says so."""
    monkeypatch.setattr(psycopg_server, "MAKE_SECONDS_MAX", 0.3)
    monkeypatch.setattr(statements, "UNSETTLED", "SELECT 1 WHERE %(snapshot)s <> ''")

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        with pytest.raises(Unavailable, match="synchronous standbys answer"):
            await reader.snapshot(place.table)
        held = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
        while place.database.run("SELECT pg_sleep(0.05)", held):  # the server notices a moment later
            pass

    asyncio.run(body())

    asyncio.run(body())


def test_a_slot_that_is_dropped_or_lost_is_a_definite_error(place):
    """Damage: what the slot kept is skipped silently."""

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        await reader.commit(first.upper)
        place.database.run(f"SELECT pg_drop_replication_slot('{place.slot}')")
        for each in (reader, await place.reader()):
            async with refused("was dropped.*strandline anew"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_a_slot_that_is_another_sources_is_refused(place):
    """Damage: two sources move one slot, and each loses what the other was sent."""

    async def body():
        place.more = {"slot": "theirs"}
        place.database.run("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
        async with refused("is there already, and is not this source's"):
            await (await place.reader()).upstream_frontier()

    asyncio.run(body())


def test_a_slot_that_another_session_has_is_asked_for_again(place, monkeypatch):
    """Damage: a moment's contention stops the source."""
    monkeypatch.setattr(psycopg_server, "LOCK_SECONDS_MAX", 0.2)

    async def body():
        reader, other = await place.reader(), await place.reader()
        await reader.upstream_frontier()
        place.database.run("INSERT INTO t VALUES (1, '1', 'a')")
        with place.database.session() as session:
            session.execute(psycopg_server.statements.LOCK, {"number": other._server._lock_number})
            with pytest.raises(Unavailable, match="another reader"):
                await other.upstream_frontier()
        assert await other.upstream_frontier() == await reader.upstream_frontier()

    asyncio.run(body())


def test_a_slot_that_stepped_back_repeats_nothing(place, postgres_server):
    """Damage: after a crash of the server what was durable comes again."""

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        await reader.commit(first.upper)
        place.database.run("CHECKPOINT", "INSERT INTO t VALUES (1, '1', 'a')")
        second = await after(reader, first.upper)
        await rows(place, reader, second)
        await reader.commit(second.upper)
        confirmed = place.standing("confirmed_flush_lsn::text")
        place.database.close()
        postgres_server.stop("immediate")
        postgres_server.start()
        assert place.standing(f"confirmed_flush_lsn < '{confirmed}'"), "it did step back"
        place.database.run("INSERT INTO t VALUES (2, '2', 'b')")
        for each in (reader, await place.reader()):
            await each.commit(second.upper)
            found = await rows(place, each, await after(each, second.upper))
            assert [row["id"] for row in found] == [2]

    asyncio.run(body())


def test_each_change_is_read_once_while_a_table_stands_still(place):
    """Damage: a table that stopped holds the slot, and a tick of one row costs what all rows since then cost."""
    own = "SELECT slot_name, confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE temporary"

    async def body():
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        place.database.run("CREATE TABLE u (id int PRIMARY KEY, n text, v text)", "ALTER PUBLICATION p ADD TABLE u")
        reader, sent = await place.reader(), []
        peek = reader._server.peek

        async def counted(*given):
            sent.append(await peek(*given))
            return sent[-1]

        reader._server.peek = counted
        begun = [await begin(place, reader, table) for table in place.schemas]
        held = begun[0].upper
        for table, first in zip(place.schemas, begun, strict=True):
            await rows(place, reader, Slice(1, NOTHING_READ, held.join(first.upper)), table=table)
        await reader.commit(held)
        place.database.run("TRUNCATE u", "INSERT INTO t SELECT g, '1', 'a' FROM generate_series(1, 2000) AS g")
        lower = held
        for time in range(2, 6):
            sent.clear()
            place.database.run(f"INSERT INTO t VALUES ({10_000 + time}, '1', 'a')")
            step = await after(reader, lower, time)
            found = await rows(place, reader, step)
            lower = step.upper
            assert (len(found), sum(sent) < 10) == ((2001, False) if time == 2 else (1, True)), sent
            async with refused("TRUNCATE"):
                await rows(place, reader, Slice(9, held, lower), table="public.u")
        ((name, position),) = place.database.run(own)
        assert held[PARTITION] < position <= lower[PARTITION], "the slot itself has not moved"
        assert place.standing("confirmed_flush_lsn - '0/0'") == held[PARTITION]
        # Another reader, and one whose connection broke, begin where the slot is, and find the same.
        other = await place.reader()
        found = await rows(place, other, await after(other, held, 9))
        assert (len(found), found[0]["id"], found[-1]["id"]) == (2004, 1, 10_005)
        pid = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{name}'"
        place.database.run(f"SELECT pg_terminate_backend(({pid}), 10000)", "INSERT INTO t VALUES (20000, '1', 'a')")
        assert [row["id"] for row in await rows(place, reader, await after(reader, lower, 9))] == [20_000]

    asyncio.run(body())


def test_the_slot_of_a_dropped_source_is_dropped(place):
    """Damage: the slot keeps the log of the server until its disk is full."""

    async def body():
        place.more = {"slot": "own_slot"}
        place.database.run("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
        reader = await place.reader()
        await reader.upstream_frontier()
        assert place.database.run(SLOTS) == [("own_slot",), ("theirs",)]
        for _ in range(2):
            assert await released(reader._server, reader._ledger.slot, (), "the server", HandClock()) == ""
            assert place.database.run(SLOTS) == [("theirs",)]
        place.database.run("SELECT pg_drop_replication_slot('theirs')")

    asyncio.run(body())
