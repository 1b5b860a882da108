"""The PostgreSQL reader on a real server: whole transactions, exact snapshots, and no change passed over."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest
from msgspec import structs
from tests.sources.readers.postgres.conftest import SCHEMA, Place, after, begin, refused, rows

from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.options import understood
from strandline.sources.reader import Keyed, TakenBack
from strandline.sources.readers.postgres import reader as reader_module
from strandline.sources.readers.postgres.connected import psycopg_server
from strandline.sources.readers.postgres.kind import KIND, released
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.doubles import HandClock

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


class OfPostgres(ReaderContract):
    def test_a_broken_promise_is_an_error_and_never_other_rows(self, place):
        """Damage: a bound range is read with other contents, silently."""

        async def body():
            reader = await place.reader()
            begun = (await self.whole(place, reader)).upper
            await place.produce()
            announced = Slice(7, begun, await reader.upstream_frontier())
            wanted = await self.found(place, await place.reader(), announced)
            await place.break_promise()
            assert await self.found(place, reader, announced) == wanted, "it has them already"
            with pytest.raises(SourceError, match="has moved to"):
                await self.found(place, await place.reader(), announced)

        self.run(body())


class TestKeyedReader(OfPostgres):
    @pytest.fixture
    def place(self, place):
        return place


class TestFullReader(OfPostgres):
    @pytest.fixture
    def place(self, full):
        return full


def test_the_replica_identity_decides_what_records_are(database):
    """Damage: an update is taken for an insertion."""
    database.run(
        "CREATE TABLE i (a int NOT NULL, b int NOT NULL, c text)",
        "CREATE UNIQUE INDEX on_b ON i (b) INCLUDE (a)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX on_b",
        "CREATE TABLE none (a int)",
        "CREATE TABLE pair (x int, y int, z int, PRIMARY KEY (y, x))",
    )
    place = Place(database)
    database.run("ALTER PUBLICATION p ADD TABLE i, none, pair")
    place.schemas = {
        "public.t": SCHEMA,
        "public.i": Schema((Column("C", "string"), Column("B", "int"))),
        "none": Schema((Column("a", "int"),)),
        "public.pair": Schema((Column("x", "int"), Column("y", "int"))),
    }

    async def body():
        reader = await place.reader()
        kinds = [reader.records(table) for table in place.schemas]
        assert kinds == [Keyed(("id",)), Keyed(("B",)), TakenBack(), Keyed(("x", "y"))]
        first = await begin(place, reader, "public.i")
        database.run("INSERT INTO i VALUES (1, 2, 'c')", "UPDATE i SET a = 5", "UPDATE i SET b = 3", "DELETE FROM i")
        found = await rows(place, reader, await after(reader, first.upper), table="public.i")
        assert [{k: v for k, v in row.items() if k not in {ORDER, DIFF, TIME}} for row in found] == [
            {"C": "c", "B": 2, GONE: False},
            {"C": "c", "B": 2, GONE: False},
            {"B": 2, GONE: True},
            {"C": "c", "B": 3, GONE: False},
            {"B": 3, GONE: True},
        ]
        await place.close()

    asyncio.run(body())


def test_rows_as_they_were_are_taken_back(full):
    """Damage: an update adds a row and leaves the old one; an error stays after its row was mended."""

    async def body():
        reader = await full.reader()
        first = await begin(full, reader)
        full.database.run(
            "INSERT INTO t VALUES (1, 'x', 'bad')", "UPDATE t SET n = '7' WHERE id = 1", "DELETE FROM t WHERE id = 0"
        )
        bad, *good = await rows(full, reader, await after(reader, first.upper))
        taken, *good = good
        reason = "column 'n': it is no int"
        assert f'"reason":"{reason}"' in bad[ERROR]
        assert f'"reason":"it takes back a record that is not here: {reason}"' in taken[ERROR]
        assert good == [
            {"id": 1, "n": 7, "v": "bad", TIME: 2, DIFF: 1},
            {"id": 0, "n": 0, "v": "there at first", TIME: 2, DIFF: -1},
        ]

    asyncio.run(body())


def test_a_large_value_that_stays_is_kept_and_a_full_row_has_it(place):
    """Damage: an update of another column loses a large value."""
    place.database.run("ALTER TABLE t ALTER v SET STORAGE EXTERNAL", "INSERT INTO t VALUES (1, '1', repeat('x', 9000))")

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        assert len((await rows(place, reader, first))[1]["v"]) == 9000
        place.database.run("UPDATE t SET n = '2' WHERE id = 1", "UPDATE t SET id = 5 WHERE id = 1")
        kept, gone, moved = await rows(place, reader, await after(reader, first.upper))
        assert (kept["id"], kept["n"], kept[KEPT], "v" in kept) == (1, 2, ["v"], False)
        assert (gone["id"], gone[GONE]) == (1, True)
        assert (moved["id"], moved[GONE], "n" in moved) == (5, False, False)
        assert "REPLICA IDENTITY FULL" in moved[ERROR]
        second = await reader.upstream_frontier()
        place.database.run("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET id = 6 WHERE id = 5")
        place.database.run("UPDATE t SET n = '3' WHERE id = 6")
        gone, moved, same = await rows(place, reader, await after(reader, second))
        assert (gone["id"], moved["id"], len(moved["v"])) == (5, 6, 9000), "it is keyed still, and full rows say more"
        assert (same["id"], same["n"], len(same["v"])) == (6, 3, 9000)

    asyncio.run(body())


def test_values_have_the_types_that_are_declared(place):
    """Damage: a value is rounded, or read in the session's own format."""
    place.database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        """CREATE TABLE types (id int PRIMARY KEY, big bigint, small smallint, num numeric(10,2),
            whole numeric, flag bool, day date, at timestamp, seen timestamptz, raw bytea, doc jsonb, key uuid,
            f4 real, f8 double precision, list int[], words text[], m mood, span interval)""",
        "ALTER PUBLICATION p ADD TABLE types",
        "ALTER DATABASE " + place.database.name + " SET datestyle = 'German'",
        "ALTER DATABASE " + place.database.name + " SET bytea_output = 'escape'",
    )
    declared = {
        "id": "int", "big": "bigint", "small": "smallint", "num": "decimal(10,2)", "whole": "decimal(38,3)",
        "flag": "boolean", "day": "date", "at": "timestamp_ntz", "seen": "timestamp", "raw": "binary", "doc": "string",
        "key": "string", "f4": "float", "f8": "double", "list": "array<int>", "words": "array<string>", "m": "string",
        "span": "string",
    }  # fmt: skip
    place.schemas = {"public.types": Schema(tuple(Column(name, kind) for name, kind in declared.items()))}
    insert = """INSERT INTO types VALUES ({id}, 9223372036854775807, -32768, -12345678.90, 1.5, true, '2024-02-29',
        '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00+02', '\\x00ff', '{{"a": [1, null]}}',
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 0.1, 1e300, '{{1,NULL,3}}', '{{"a,b",NULL,"NULL",""}}', 'glad',
        '1 day')"""

    async def body():
        place.database.run(insert.format(id=1), "INSERT INTO types (id) VALUES (2)")
        reader = await place.reader()
        first = await begin(place, reader, "public.types")
        place.database.run(insert.format(id=3))
        place.database.run(
            "INSERT INTO types (id, whole) VALUES (4, 'NaN')", "INSERT INTO types (id, at) VALUES (5, 'infinity')"
        )
        snapshot = await rows(place, reader, first, table="public.types")
        changes = await rows(place, reader, await after(reader, first.upper), table="public.types")
        hidden = {ORDER, TIME, "id"}
        one, three = ({k: v for k, v in row.items() if k not in hidden} for row in (snapshot[0], changes[0]))
        assert one == three, "the snapshot and the changes say the same"
        assert {k: v for k, v in snapshot[1].items() if k not in hidden} == {GONE: False, DIFF: 1}
        del one[GONE], one[DIFF]
        assert {name: str(value) for name, value in one.items()} == {
            "big": "9223372036854775807", "small": "-32768", "num": "-12345678.90", "whole": "1.500", "flag": "True",
            "day": "2024-02-29", "at": "2024-02-29 12:00:00.000001", "seen": "2024-02-29 10:00:00+00:00",
            "raw": r"b'\x00\xff'", "doc": '{"a": [1, null]}', "key": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "f4": "0.10000000149011612", "f8": "1e+300", "list": "[1, None, 3]",
            "words": "['a,b', None, 'NULL', '']", "m": "glad", "span": "1 day",
        }  # fmt: skip
        assert ["cannot be NaN" in row.get(ERROR, "") for row in changes[1:]] == [True, False]
        assert "it is no time of the years 1 to 9999" in changes[2][ERROR]

    asyncio.run(body())


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


def test_upstream_may_forget_what_is_durable_also_where_no_table_of_ours_changes(place):
    """Damage: an idle table keeps the log of a busy server for ever."""
    place.database.run("CREATE TABLE other (x text)")

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        await reader.commit(first.upper)
        assert place.standing("confirmed_flush_lsn = '" + lsn(first.upper) + "'")
        for _ in range(3):
            place.database.run("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
            before = await reader.upstream_frontier()
            await reader.commit(before)
            assert place.standing("confirmed_flush_lsn = '" + lsn(before) + "'")
        place.database.run("CHECKPOINT", "INSERT INTO other VALUES ('y')", "CHECKPOINT")
        await reader.commit(await reader.upstream_frontier())
        held = place.standing("pg_current_wal_flush_lsn() - restart_lsn")
        assert held < 2_000_000, "three times as much was written"

    asyncio.run(body())


def lsn(offsets):
    """A position as PostgreSQL writes it."""
    return reader_module.lsn_text(offsets[PARTITION])


def test_a_large_backlog_is_taken_in_steps_that_end_with_a_transaction(place, monkeypatch):
    """Damage: a long outage becomes one step that no memory holds."""
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_ROWS", 50)
    place.more = {"step_changes": "100"}

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        for n in range(20):
            place.database.run(
                f"INSERT INTO t SELECT i, '1', 'a' FROM generate_series({n * 60 + 1}, {n * 60 + 60}) AS i"
            )
        uppers, sizes = [first.upper], []
        while True:
            piece = await after(reader, uppers[-1])
            found = await rows(place, reader, piece)
            if not found:
                break
            sizes.append(len(found))
            uppers.append(piece.upper)
            if len(uppers) % 2:
                await reader.commit(piece.upper)
        assert sum(sizes) == 1200
        assert len(sizes) >= 8
        assert all(size % 60 == 0 and size <= 240 for size in sizes)

    asyncio.run(body())


def test_changes_that_do_not_fit_into_memory_lie_in_files(full, monkeypatch):
    """Damage: a transaction of a million rows ends the process; its files stay behind."""
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_ROWS", 100)

    async def body():
        reader = await full.reader()
        reader._log._held_bytes_max = 10_000
        first = await begin(full, reader)
        await rows(full, reader, first)
        full.database.run("INSERT INTO t SELECT i, '1', repeat('a', 20) FROM generate_series(1, 2000) AS i")
        full.database.run("UPDATE t SET n = '2'")
        piece = await after(reader, first.upper)
        found = await rows(full, reader, piece)
        assert len(found) == 2000 + 2 * 2001
        directory = reader._log._directory.name
        assert [row for row in found if row["id"] == 7] == [
            {"id": 7, "n": 1, "v": "a" * 20, TIME: 2, DIFF: 1},
            {"id": 7, "n": 1, "v": "a" * 20, TIME: 2, DIFF: -1},
            {"id": 7, "n": 2, "v": "a" * 20, TIME: 2, DIFF: 1},
        ]
        await reader.commit(piece.upper)
        assert not list(Path(directory).iterdir())
        await reader.close()
        assert not Path(directory).exists()

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
            async with refused("was dropped.*create them anew"):
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


def test_what_upstream_lacks_is_said_with_what_to_run(place):
    """Damage: an operator must guess why nothing comes."""

    async def open_it():
        await (await place.reader()).snapshot(place.table)

    async def body():
        place.more = {"publication": "q"}
        async with refused(r"no publication 'q': run CREATE PUBLICATION q FOR TABLE public\.t"):
            await open_it()
        place.more = {}
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        place.database.run("CREATE TABLE u (id int, n int, v text)")
        async with refused(r"run ALTER PUBLICATION p ADD TABLE public\.u"):
            await (await place.reader()).snapshot("public.u")
        await open_it()
        place.schemas = {"public.t": Schema((Column("id", "int"), Column("missing", "int")))}
        async with refused("has no column missing in the publication; it has id, n, v"):
            await (await place.reader()).snapshot("public.t")
        place.schemas = {"public.t": Schema((Column("n", "int"),))}
        async with refused("kept by its key, of which id is not declared"):
            await (await place.reader()).snapshot("public.t")
        place.schemas = {"public.t": SCHEMA}
        place.database.run("ALTER PUBLICATION p SET (publish = 'insert')")
        async with refused("leaves out each delete, update: run ALTER PUBLICATION p SET"):
            await (await place.reader()).snapshot("public.t")
        place.database.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete')")
        reader = await place.reader()
        await reader.upstream_frontier()
        assert "TRUNCATE" in reader.notices()[0]
        place.database.run("ALTER PUBLICATION p DROP TABLE t")
        async with refused(r"run ALTER PUBLICATION p ADD TABLE public\.t there$"):
            await reader.snapshot(place.table)

    asyncio.run(body())


def test_create_table_asks_the_server(place):
    """Damage: a typing error in CREATE TABLE is accepted, and an operator finds it later."""
    ask = KIND.ask_table
    given = {**place.database.options, "publication": "p"}

    def options(**more):
        return understood("s", PostgresOptions, {**given, **more})

    async def body():
        await ask(options(), "public.t", SCHEMA)
        async with refused(r"run ALTER PUBLICATION p ADD TABLE public\.u"):
            await ask(options(), "public.u", SCHEMA)
        async with refused("has no column missing in the publication; it has id, n, v"):
            await ask(options(), "public.t", Schema((Column("id", "int"), Column("missing", "int"))))
        async with refused(r"no publication 'q': run CREATE PUBLICATION q FOR TABLE public\.t"):
            await ask(options(publication="q"), "public.t", SCHEMA)
        with pytest.raises(Unavailable):
            await ask(options(port="1"), "public.t", SCHEMA)
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unavailable, match="has not answered"):
            await ask(options(host="127.0.0.1", port=str(silent.getsockname()[1])), "public.t", SCHEMA)

    asyncio.run(body())


def test_a_role_without_the_rights_learns_what_it_needs(place):
    """Damage: the message names neither the role's right nor the table."""
    place.database.run(
        "DROP ROLE IF EXISTS reads", "CREATE ROLE reads LOGIN REPLICATION",
        "DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN",
    )  # fmt: skip

    async def body():
        place.more = {"user": "plain"}
        async with refused("the role needs REPLICATION"):
            await (await place.reader()).upstream_frontier()
        place.more = {"user": "reads"}
        reader = await place.reader()
        first = await begin(place, reader)
        async with refused("permission denied for table t.*SELECT on the tables"):
            await rows(place, reader, first)
        place.database.run("GRANT SELECT ON t TO reads")
        assert len(await rows(place, reader, await begin(place, reader))) == 1
        await place.close()
        place.database.run("DROP OWNED BY reads", "DROP ROLE reads", "DROP ROLE plain")

    asyncio.run(body())


def test_a_server_that_is_gone_is_unavailable_and_goes_on_when_it_is_back(place, postgres_server):
    """Damage: an outage of upstream stops the source for good, or loses what was committed before it."""

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        place.database.run("INSERT INTO t VALUES (1, '1', 'a')")
        place.database.close()
        postgres_server.stop("immediate")
        try:
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await reader.upstream_frontier()
        finally:
            postgres_server.start()
        found = await rows(place, reader, await after(reader, first.upper))
        assert [row["id"] for row in found] == [1]
        with pytest.raises(Unavailable, match="snapshot"):
            await rows(place, reader, first)
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0, 1]

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


def test_a_wrong_password_is_unavailable_and_not_shown(place, postgres_server):
    """Damage: a rotated password stops the source for good, or stands in a log."""
    rules = postgres_server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    place.database.run("DROP ROLE IF EXISTS secret", "CREATE ROLE secret LOGIN REPLICATION SUPERUSER PASSWORD 'right'")

    async def body():
        place.more = {"user": "secret", "password": "wrong"}
        with pytest.raises(Unavailable, match="password authentication failed") as caught:
            await (await place.reader()).upstream_frontier()
        assert "wrong" not in str(caught.value)
        place.more = {"user": "secret", "password": "right"}
        await (await place.reader()).upstream_frontier()
        await place.close()

    rules.write_text(f"host all secret all scram-sha-256\n{before}")
    place.database.run("SELECT pg_reload_conf()")
    try:
        asyncio.run(body())
    finally:
        rules.write_text(before)
        place.database.run("SELECT pg_reload_conf()", "DROP ROLE secret")


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
    monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 0.3)
    place.schemas = {place.table: SCHEMA, "public.u": SCHEMA}
    place.database.run("CREATE TABLE u (id int PRIMARY KEY, n int, v text)", "ALTER PUBLICATION p ADD TABLE u")

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        with place.database.session() as session:
            session.execute("INSERT INTO t VALUES (1, '1', 'a')")
            with pytest.raises(Unavailable, match="snapshot waits for transactions.*session"):
                await reader.snapshot(place.table)
            monkeypatch.setattr(psycopg_server, "PATIENCE_SECONDS", 20.0)
            async with asyncio.timeout(10):  # what is known to wait is not waited for
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
        assert place.database.run("SELECT pg_sleep(0.2)", theirs) == [(0,)]
        assert place.database.run("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [
            (1,)
        ]
        await reader.close()
        await reader.close()

    asyncio.run(body())


def test_changes_of_a_table_upstream_have_their_stated_outcomes(full):
    """Damage: a column is filled with what it is not, or a truncated table keeps its rows."""
    run = full.database.run

    async def body():
        reader = await full.reader()
        first = await begin(full, reader)
        await rows(full, reader, first)
        await reader.commit(first.upper)
        run("ALTER TABLE t ADD COLUMN w int DEFAULT 5", "INSERT INTO t VALUES (1, '1', 'a', 7)")
        second = await after(reader, first.upper)
        (added,) = await rows(full, reader, second)
        assert added == {"id": 1, "n": 1, "v": "a", TIME: 2, DIFF: 1}, "a column that is not declared is left out"
        run("CREATE DOMAIN words AS text", f"INSERT INTO t VALUES (2, '{1 << 40}', 'a', 7)")
        third = await after(reader, second.upper)
        (wide,) = await rows(full, reader, third)
        assert "column 'n': it lies outside int" in wide[ERROR]
        for statement, why in (
            ("ALTER TABLE t ALTER v TYPE words", "column 'v' was of type text and no longer is"),
            ("ALTER TABLE t RENAME COLUMN v TO old_v", "column 'v' is gone upstream"),
            ("ALTER TABLE t REPLICA IDENTITY DEFAULT", "replica identity is no longer FULL"),
        ):
            place = await after(reader, third.upper)
            run("BEGIN", statement, "UPDATE t SET n = '5' WHERE id = 0", "COMMIT")
            async with refused(why):
                await rows(full, reader, await after(reader, place.upper))
            run(
                "ALTER TABLE t REPLICA IDENTITY FULL",
                "ALTER TABLE t RENAME COLUMN old_v TO v" if "RENAME" in statement else "SELECT 1",
                "ALTER TABLE t ALTER v TYPE text",
            )
            third = await after(reader, place.upper)
        run("TRUNCATE t")
        last = await after(reader, third.upper)
        async with refused("removed by TRUNCATE.*create it anew"):
            await rows(full, reader, last)
        async with refused("removed by TRUNCATE"):
            await rows(full, await full.reader(), last)
        assert await rows(full, reader, await begin(full, reader)) == [], "a table that begins now begins with nothing"

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


def test_the_slot_of_a_dropped_source_is_dropped(place):
    """Damage: the slot keeps the log of the server until its disk is full."""
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"

    async def body():
        place.more = {"slot": "own_slot"}
        place.database.run("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
        reader = await place.reader()
        await reader.upstream_frontier()
        assert place.database.run(slots) == [("own_slot",), ("theirs",)]
        for _ in range(2):
            assert await released(reader._server, reader._ledger.slot, (), "the server", HandClock()) == ""
            assert place.database.run(slots) == [("theirs",)]
        place.database.run("SELECT pg_drop_replication_slot('theirs')")

    asyncio.run(body())


def test_another_server_at_the_same_address_is_refused(place):
    """Damage: positions of one log are taken for those of another."""

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        note = reader._ledger.slot
        await reader._ledger.write(structs.replace(note, system="1"))
        async with refused("another database answers"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_a_connection_that_dies_costs_one_call(place):
    """Damage: a backend that was ended leaves the source without a connection."""

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        place.database.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'strandline'"
        )
        with pytest.raises(Unavailable):
            await rows(place, reader, first)
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0]
        with pytest.raises(psycopg.Error):
            place.database.run("SELECT 1/0")

    asyncio.run(body())
