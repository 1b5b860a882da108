"""A table that is altered upstream so that rows change of which no message is sent."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.readers.postgres.conftest import after, begin, refused, rows

from strandline.algebra.schema import Column, Schema
from strandline.errors import Unavailable
from strandline.sources.reclock import NOTHING_READ, Slice

pytestmark = pytest.mark.server

SHAPED = Schema(
    tuple(Column(name, kind) for name, kind in {"id": "int", "a": "int", "b": "int", "v": "string"}.items())
)
COLUMNS = "(id int PRIMARY KEY, a int, b int, v varchar(20))"
SWAP = ["ALTER TABLE s RENAME a TO x", "ALTER TABLE s RENAME b TO a", "ALTER TABLE s RENAME x TO b"]

STOPS = {
    "a column is dropped and added": (
        ["ALTER TABLE s DROP COLUMN a, ADD COLUMN a int DEFAULT 7"],
        "column 'a' was dropped or renamed, and another column has its name",
    ),
    "two columns swap their names": (SWAP, "column 'a' was dropped or renamed"),
    "a type that reads alike has other values": (
        ["ALTER TABLE s ALTER v TYPE text USING upper(v)"],
        "column 'v' was altered and the rows were rewritten",
    ),
    "the same type has other values": (
        ["ALTER TABLE s ALTER b TYPE int USING b * 10"],
        "column 'b' was altered and the rows were rewritten",
    ),
    "a wider type has other values": (
        ["ALTER TABLE s ALTER b TYPE bigint USING b * 10"],
        "column 'b' was altered and the rows were rewritten",
    ),
    "a column has another name for a while": (
        ["ALTER TABLE s RENAME b TO x", "ALTER TABLE s ALTER x TYPE int USING x * 10", "ALTER TABLE s RENAME x TO b"],
        "column 'b' was altered and the rows were rewritten",
    ),
}
STAYS = {
    "VACUUM FULL": ["VACUUM FULL s"],
    "CLUSTER": ["CLUSTER s USING s_pkey"],
    "a default": ["ALTER TABLE s ALTER a SET DEFAULT 3"],
    "NOT NULL": ["ALTER TABLE s ALTER a SET NOT NULL"],
    "statistics": ["ALTER TABLE s ALTER a SET STATISTICS 7", "ANALYZE s"],
    "a wider varchar": ["ALTER TABLE s ALTER v TYPE varchar(40)"],
    "text": ["ALTER TABLE s ALTER v TYPE text"],
    "another column": ["ALTER TABLE s ADD COLUMN w int DEFAULT 7"],
    "another column, and a rewrite": ["ALTER TABLE s ADD COLUMN w float DEFAULT random()"],
    "another column's type": ["ALTER TABLE s ADD COLUMN w int", "ALTER TABLE s ALTER w TYPE bigint"],
    "another column goes": ["ALTER TABLE s ADD COLUMN w int", "ALTER TABLE s DROP COLUMN w"],
    "the catalog is rewritten": ["VACUUM (FULL, FREEZE) pg_attribute", "VACUUM (FULL, FREEZE) pg_class"],
    "a name for a while": ["ALTER TABLE s RENAME a TO x", "ALTER TABLE s RENAME x TO a"],
}
PARTITION = "CREATE TABLE more PARTITION OF s FOR VALUES FROM (100) TO (200)"
PARTITIONED = {"one table": False, "partitions": True}


async def begun(place, *, partitioned=False):
    """Begin with a table of two rows beside one that stays as it is; return the reader and what it has read."""
    if partitioned:
        place.database.run(
            f"CREATE TABLE s {COLUMNS} PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF s FOR VALUES FROM (0) TO (2)",
            "CREATE TABLE high PARTITION OF s FOR VALUES FROM (2) TO (100)",
            "ALTER PUBLICATION p SET (publish_via_partition_root)",
        )
    else:
        place.database.run(f"CREATE TABLE s {COLUMNS}")
    place.database.run("INSERT INTO s VALUES (1, 1, 2, 'a'), (2, 1, 2, 'b')", "ALTER PUBLICATION p ADD TABLE s")
    place.table = "public.s"
    place.schemas = {"public.s": SHAPED}
    reader = await place.reader()
    first = await begin(place, reader)
    assert len(await rows(place, reader, first)) == 2
    await reader.commit(first.upper)
    return reader, first.upper


@pytest.mark.parametrize("kind", PARTITIONED)
@pytest.mark.parametrize("way", STOPS)
def test_a_table_whose_rows_changed_without_a_message_is_read_no_further(place, way, kind):
    """Damage: the rows that are not updated afterwards stay wrong for good."""

    async def body():
        reader, upper = await begun(place, partitioned=PARTITIONED[kind])
        statements, why = STOPS[way]
        place.database.run(*statements, "UPDATE s SET a = 9 WHERE id = 1")
        for each in (reader, await place.reader()):
            async with refused(f"table 'public.s' can be read no further: {why}.*strandline anew public.s"):
                await rows(place, each, await after(each, upper))
        anew = await rows(place, reader, await begin(place, reader))
        assert sorted(row["id"] for row in anew) == [1, 2], "a table that begins now has all rows"

    asyncio.run(body())


@pytest.mark.parametrize("way", STAYS)
def test_a_table_whose_rows_are_what_they_were_is_read_on(place, way):
    """Damage: a table of a thousand million rows is read anew for nothing."""

    async def body():
        reader, upper = await begun(place)
        place.database.run(*STAYS[way], "UPDATE s SET a = 9 WHERE id = 1")
        for each in (reader, await place.reader()):
            ((row),) = await rows(place, each, await after(each, upper))
            assert (row["id"], row["a"], row["b"], row["v"]) == (1, 9, 2, "a")

    asyncio.run(body())


def test_a_partitioned_table_whose_rows_are_what_they_were_is_read_on(place):
    """Damage: a table stops each day, since a partition is added each day."""

    async def body():
        reader, upper = await begun(place, partitioned=True)
        for statement in (PARTITION, *STAYS["a default"], "VACUUM FULL low", *STAYS["NOT NULL"]):
            place.database.run(statement)
            await reader.upstream_frontier()
        place.database.run("UPDATE s SET a = 9 WHERE id = 1")
        assert [row["a"] for row in await rows(place, reader, await after(reader, upper))] == [9]

    asyncio.run(body())


@pytest.mark.parametrize("way", ["ALTER TABLE s DETACH PARTITION high", "DROP TABLE high"])
def test_a_table_that_loses_a_partition_is_read_no_further(place, way):
    """Damage: the rows of the partition stay here for good, since no change says that they went."""

    async def body():
        reader, upper = await begun(place, partitioned=True)
        place.database.run(way, PARTITION, "UPDATE s SET a = 9 WHERE id = 1")
        for each in (reader, await place.reader()):
            async with refused("can be read no further: a partition was detached or dropped.*strandline anew public.s"):
                await rows(place, each, await after(each, upper))
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [1]

    asyncio.run(body())


IDENTITIES = {
    "the table is FULL": (["ALTER TABLE s REPLICA IDENTITY FULL"], ["ALTER TABLE {} REPLICA IDENTITY FULL"]),
    "the partition goes by another key": (
        [
            "ALTER TABLE high ALTER a SET NOT NULL",
            "CREATE UNIQUE INDEX other ON high (a)",
            "ALTER TABLE high REPLICA IDENTITY USING INDEX other",
        ],
        ["ALTER TABLE {} REPLICA IDENTITY DEFAULT"],
    ),
}


@pytest.mark.parametrize("way", IDENTITIES)
def test_a_table_whose_partition_says_less_of_its_rows_is_read_no_further(place, way):
    """Damage: rows that are deleted stay here, or rows are taken back that never were."""
    spoil, mend = IDENTITIES[way]

    async def body():
        reader, upper = await begun(place, partitioned=True)
        place.database.run(*spoil, "DELETE FROM s WHERE id = 2")
        async with refused("its partition public.(low|high) has another replica identity than the table"):
            await rows(place, reader, await after(reader, upper))
        async with refused("table 'public.s' cannot be read: its partition public.(low|high) has another replica"):
            await begin(place, reader)
        place.database.run(*(statement.format(part) for statement in mend for part in ("low", "high")))
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [1]

    asyncio.run(body())


def test_a_snapshot_from_before_a_rewrite_is_not_begun_with(place):
    """Damage: a table begins without rows, since a snapshot does not see rows that a later statement rewrites."""

    async def body():
        reader, _ = await begun(place)
        early = await reader.snapshot(place.table)
        place.database.run("ALTER TABLE s ALTER b TYPE int USING b * 10")
        first = Slice(1, NOTHING_READ, (await reader.upstream_frontier()).join(early))
        with pytest.raises(Unavailable, match="or the table was altered since the snapshot.*: another one is taken$"):
            await rows(place, reader, first)
        assert [row["b"] for row in await rows(place, reader, await begin(place, reader))] == [20, 20]

    asyncio.run(body())


def test_what_is_harmless_alone_is_harmless_one_after_the_other(place):
    """Damage: a default of last year and the VACUUM FULL of today stop a table."""

    async def body():
        reader, upper = await begun(place)
        for statement in (*STAYS["a default"], *STAYS["VACUUM FULL"], *STAYS["NOT NULL"], *STAYS["CLUSTER"]):
            place.database.run(statement)
            await reader.upstream_frontier()
        place.database.run("UPDATE s SET a = 9 WHERE id = 1")
        assert [row["a"] for row in await rows(place, reader, await after(reader, upper))] == [9]

    asyncio.run(body())


def test_a_column_that_is_rewritten_under_another_name_stops_the_table_once_it_is_back(place):
    """Damage: a look at the wrong moment takes the rewritten table for the one that was noted."""

    async def body():
        reader, upper = await begun(place)
        away, changed, back = STOPS["a column has another name for a while"][0]
        for statement in (away, changed, back):
            place.database.run(statement)
            await reader.upstream_frontier()
        async with refused("column 'b' was altered and the rows were rewritten"):
            await rows(place, reader, await after(reader, upper))

    asyncio.run(body())


def test_a_rewrite_that_stores_the_default_of_an_added_column_stops_the_table(place):
    """Damage: the first VACUUM FULL after ADD COLUMN cannot be told from ALTER COLUMN … TYPE, and one goes on wrong."""
    place.database.run("ALTER TABLE t ADD COLUMN w int DEFAULT 5")
    place.schemas = {"public.t": Schema((Column("id", "int"), Column("w", "int")))}

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        await rows(place, reader, first)
        await reader.commit(first.upper)  # which lets the snapshot go
        place.database.run("VACUUM FULL t", "INSERT INTO t VALUES (1)")
        async with refused("column 'w' was altered and the rows were rewritten"):
            await rows(place, reader, await after(reader, first.upper))

    asyncio.run(body())
