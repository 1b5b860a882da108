"""Snapshots on a real server: exact, whole transactions, and nothing held longer than needed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count

import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, after, begin, rows

from strandline.algebra.messages import GONE
from strandline.algebra.schema import DIFF, Column, Schema
from strandline.errors import Unavailable
from strandline.sources.readers.postgres import psycopg_server
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice

pytestmark = pytest.mark.server


@contextmanager
def writing(stops, write, workers):
    """Have ``write`` run for each worker, until the block ends; what one of them raises is raised."""
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(write, worker) for worker in workers]
        try:
            yield
        finally:
            stops.set()
            for each in running:
                each.result()


def test_a_snapshot_and_the_changes_have_neither_gap_nor_overlap_while_transactions_run(full):
    """Damage: a row that was committed while the snapshot was taken is missing for good, or there twice."""
    full.database.run("CREATE TABLE u (id int, n int, v text)", "ALTER TABLE u REPLICA IDENTITY FULL")
    full.database.run("ALTER PUBLICATION p ADD TABLE u")
    full.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
    stops = threading.Event()

    def write(worker):
        with full.database.session() as session:
            for n in count():
                if stops.is_set():
                    return
                at = 1 + worker * 1_000_000 + n
                session.execute("INSERT INTO t VALUES (%s, '1', 'a')", (at,))
                session.execute("INSERT INTO u VALUES (%s, 1, 'a')", (at,))
                session.execute("UPDATE t SET n = '2' WHERE id = %s", (at - 3,))
                if n % 5 == 4:
                    session.execute("DELETE FROM t WHERE id = %s", (at - 4,))
                (session.rollback if n % 7 == 6 else session.commit)()

    async def body():
        for _ in range(3):
            reader = await full.reader()
            held = {table: Counter() for table in full.schemas}
            stops.clear()
            with writing(stops, write, [next(workers) for _ in range(4)]):
                await reader.upstream_frontier()
                firsts = {table: await begin(full, reader, table) for table in held}
                for table, first in firsts.items():
                    await take(reader, held, table, first)
            for table, first in firsts.items():
                await take(reader, held, table, await after(reader, first.upper))
                name = table.removeprefix("public.")
                assert held[table] == Counter(full.database.run(f"SELECT id, n::int, v FROM {name}"))
            await reader.close()

    async def take(reader, held, table, piece):
        for row in await rows(full, reader, piece, table=table):
            held[table][row["id"], row["n"], row["v"]] += row[DIFF]
        held[table] = Counter({row: n for row, n in held[table].items() if n})

    workers = count()
    asyncio.run(body())


def test_transfers_are_whole_at_every_frontier(full):
    """Damage: a transaction is torn between two times, or between two tables at one time."""
    full.database.run(
        "CREATE TABLE u (id int PRIMARY KEY, n int, v text)", "ALTER TABLE u REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE u", "DELETE FROM t",
        "INSERT INTO t SELECT i, '100', '' FROM generate_series(0, 9) AS i",
        "INSERT INTO u SELECT i, 100, '' FROM generate_series(0, 9) AS i",
    )  # fmt: skip
    full.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
    full.more = {"step_changes": "7"}
    stops = threading.Event()

    def transfer(worker):
        with full.database.session() as session:
            for n in count():
                if stops.is_set():
                    return
                amount, at = n % 7, (n * 3 + worker) % 10
                session.execute("UPDATE t SET n = (n::int - %s)::text WHERE id = %s", (amount, at))
                session.execute("UPDATE u SET n = n + %s WHERE id = %s", (amount, 9 - at))
                session.commit()

    async def body():
        reader = await full.reader()
        total = dict.fromkeys(full.schemas, 0)
        with writing(stops, transfer, range(2)):
            pieces = {table: await begin(full, reader, table) for table in total}
            upper = max((piece.upper for piece in pieces.values()), key=lambda offsets: offsets[PARTITION])
            pieces = {table: Slice(1, NOTHING_READ, upper) for table in total}
            for time in range(2, 40):
                for table, piece in pieces.items():
                    total[table] += sum(row["n"] * row[DIFF] for row in await rows(full, reader, piece, table=table))
                assert sum(total.values()) == 2000
                await reader.commit(upper)
                pieces = {table: Slice(time, upper, await reader.upstream_frontier()) for table in total}
                upper = max((piece.upper for piece in pieces.values()), key=lambda offsets: offsets[PARTITION])
                pieces = {table: Slice(time, piece.lower, upper) for table, piece in pieces.items()}

    asyncio.run(body())


def test_a_snapshot_is_taken_after_transactions_that_were_rolled_back(place):
    """Damage: on a server where transactions are rolled back while a snapshot is made, no table begins."""
    begun, pause = threading.Event(), threading.Event()

    def roll_back():
        with place.database.session() as first, place.database.session() as second, place.database.session() as third:
            for session, before in ((first, None), (second, first), (third, second)):
                session.execute("SELECT pg_current_xact_id()")
                begun.set()
                pause.wait(0.3)
                if before is not None:
                    before.rollback()
            pause.wait(0.3)
            third.rollback()

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        with ThreadPoolExecutor() as pool:
            ending = pool.submit(roll_back)
            await asyncio.to_thread(begun.wait)
            found = await rows(place, reader, await begin(place, reader))
            ending.result()
        assert [row["id"] for row in found] == [0]

    asyncio.run(body())


def test_a_snapshot_that_waits_for_a_transaction_says_so_and_goes_on(place, monkeypatch):
    """Damage: a long transaction upstream blocks the tick of all sources, or starves this one for ever."""
    place.schemas = {place.table: SCHEMA, "public.u": SCHEMA}
    place.database.run("CREATE TABLE u (id int PRIMARY KEY, n int, v text)", "ALTER PUBLICATION p ADD TABLE u")

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 0.3)
        with place.database.session() as session:
            session.execute("INSERT INTO t VALUES (1, '1', 'a')")
            with pytest.raises(Unavailable, match="snapshot waits for transactions.*session"):
                await reader.snapshot(place.table)
            monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 600.0)
            async with asyncio.timeout(120):  # what is known to wait is not waited for
                for table in ("public.u", place.table, "public.u"):
                    with pytest.raises(Unavailable, match="snapshot waits for transactions.*session"):
                        await reader.snapshot(table)
        while reader._server._making:
            with suppress(Unavailable):
                await reader.snapshot(place.table)
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0, 1]

    asyncio.run(body())


def test_nothing_is_held_upstream_once_the_first_step_is_durable(place):
    """Damage: a snapshot that no step reads keeps upstream from cleaning up, and a slot is used up."""
    theirs = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        assert place.database.run(theirs, theirs) == [(1,)]
        await reader.commit(first.upper)
        while place.database.run("SELECT pg_sleep(0.05)", theirs) != [(0,)]:  # the server notices a moment later
            pass
        kept = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
        assert place.database.run(kept) == [(1,)]
        await reader.close()
        await reader.close()

    asyncio.run(body())


def test_what_the_publication_leaves_out_is_left_out_of_the_snapshot(place):
    """Damage: the snapshot has rows that no change will ever take away."""
    place.database.run(
        "CREATE TABLE part (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION q FOR TABLE t (id, v) WHERE (id > 4), part WITH (publish_via_partition_root)",
        "INSERT INTO t VALUES (3, '3', 'a'), (5, '5', 'b')",
        "INSERT INTO part VALUES (1, 1, 'a'), (11, 11, 'b')",
    )
    place.more = {"publication": "q"}
    place.schemas = {"public.t": Schema((Column("id", "int"), Column("v", "string"))), "public.part": SCHEMA}

    async def body():
        reader = await place.reader()
        first = {table: await begin(place, reader, table) for table in place.schemas}
        assert [r["id"] for r in await rows(place, reader, first["public.t"])] == [5]
        assert [r["id"] for r in await rows(place, reader, first["public.part"], table="public.part")] == [1, 11]
        place.database.run("UPDATE t SET id = id + 10", "UPDATE part SET id = 19 WHERE id = 1")
        changed = await rows(place, reader, await after(reader, first["public.t"].upper))
        assert [(row["id"], row[GONE]) for row in changed] == [(10, False), (13, False), (5, True), (15, False)]
        moved = await rows(place, reader, await after(reader, first["public.part"].upper), table="public.part")
        assert [(row["id"], row[GONE]) for row in moved] == [(1, True), (19, False)]

    asyncio.run(body())
