"""The PostgreSQL reader on a real server: no change passed over, and each row as it is upstream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, Place, after, begin, refused, rows

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import SourceError
from strandline.sources.reader import Keyed, TakenBack
from strandline.sources.readers.postgres import reader as reader_module
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.reclock import Slice
from strandline.testing.contracts.reader_contract import ReaderContract

pytestmark = pytest.mark.server


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
    """Damage: a value is rounded, or read in the format that an operator has set (`postgres_server.HOSTILE`)."""
    place.database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        """CREATE TABLE types (id int PRIMARY KEY, big bigint, small smallint, num numeric(10,2),
            whole numeric, flag bool, day date, at timestamp, seen timestamptz, raw bytea, doc jsonb, key uuid,
            f4 real, f8 double precision, list int[], words text[], m mood, span interval,
            cash money, rel regclass, tag xml)""",
        "ALTER PUBLICATION p ADD TABLE types",
    )
    declared = {
        "id": "int", "big": "bigint", "small": "smallint", "num": "decimal(10,2)", "whole": "decimal(38,3)",
        "flag": "boolean", "day": "date", "at": "timestamp_ntz", "seen": "timestamp", "raw": "binary", "doc": "string",
        "key": "string", "f4": "float", "f8": "double", "list": "array<int>", "words": "array<string>", "m": "string",
        "span": "string", "cash": "string", "rel": "string", "tag": "string",
    }  # fmt: skip
    place.schemas = {"public.types": Schema(tuple(Column(name, kind) for name, kind in declared.items()))}
    insert = """INSERT INTO types VALUES ({id}, 9223372036854775807, -32768, -12345678.90, 1.5, true, '2024-02-29',
        '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00+02', '\\x00ff', '{{"a": [1, null]}}',
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 0.1, 0.9601271002174996, '{{1,NULL,3}}', '{{"a,b",NULL,"NULL",""}}',
        'glad', '-1 day 02:00:00', '1.5', 'types', '<?xml version="1.0"?><a/>')"""

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
            "f4": "0.10000000149011612", "f8": "0.9601271002174996", "list": "[1, None, 3]",
            "words": "['a,b', None, 'NULL', '']", "m": "glad", "span": "-1 days +02:00:00",
            "cash": "$1.50", "rel": "public.types", "tag": "<a/>",
        }  # fmt: skip
        assert ["cannot be NaN" in row.get(ERROR, "") for row in changes[1:]] == [True, False]
        assert "it is no time of the years 1 to 9999" in changes[2][ERROR]

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
        async with refused("removed by TRUNCATE.*strandline anew"):
            await rows(full, reader, last)
        async with refused("removed by TRUNCATE"):
            await rows(full, await full.reader(), last)
        assert await rows(full, reader, await begin(full, reader)) == [], "a table that begins now begins with nothing"

    asyncio.run(body())
