"""What a real server says of columns that are added: which rows have values in them that no change says."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, after, begin, rows

from strandline.algebra.schema import Column, Schema
from strandline.errors import SourceError
from strandline.sources.reader import ColumnsAdded

pytestmark = pytest.mark.server
WIDER = Schema((*SCHEMA, Column("w", "string")))
PARTITIONED = (
    "DROP TABLE t",
    "CREATE TABLE t (id int, n text, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "INSERT INTO t VALUES (0, '0', 'there at first')",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "ALTER TABLE t_1 REPLICA IDENTITY FULL",
    "DROP PUBLICATION p",
    "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)",
)


async def begun(place):
    """Return a reader that has read the table's snapshot, and let it go: ALTER TABLE waits for it."""
    reader = await place.reader()
    first = await begin(place, reader)
    await rows(place, reader, first)
    await reader.commit(first.upper)
    return reader, first.upper


def test_a_new_column_comes_with_its_first_value_and_old_rows_go(full):
    """Damage: the first values of a new column are lost, or rows from before it cannot go any longer."""

    async def body():
        full.evolving = frozenset({full.table})
        reader, upper = await begun(full)
        full.database.run(
            "INSERT INTO t VALUES (1, '1', 'a')",
            "ALTER TABLE t ADD COLUMN w text",
            "INSERT INTO t VALUES (2, '2', 'b', 'x')",
            "DELETE FROM t WHERE id = 0",
        )
        whole = await after(reader, upper)
        with pytest.raises(ColumnsAdded) as added:
            await rows(full, reader, whole)
        assert added.value.columns == (Column("w", "string"),)
        full.schemas = {full.table: WIDER}
        found = await rows(full, await full.reader(), whole)
        said = {row["id"]: (row.get("w"), row["__diff"]) for row in found}
        assert said == {0: (None, -1), 1: (None, 1), 2: ("x", 1)}

    asyncio.run(body())


@pytest.mark.parametrize("default", ["'d'", "clock_timestamp()::text"], ids=["constant", "volatile"])
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "partitioned"])
def test_a_column_with_a_default_is_not_taken_where_rows_have_no_key(full, default, parts):
    """Damage: rows from before a column go with a value that they never had here, and their count becomes negative."""

    async def body():
        full.database.run(*(PARTITIONED if parts else ()))
        full.evolving = frozenset({full.table})
        reader, upper = await begun(full)
        full.database.run(f"ALTER TABLE t ADD COLUMN w text DEFAULT {default}", "DELETE FROM t WHERE id = 0")
        whole = await after(reader, upper)
        assert [row["__diff"] for row in await rows(full, reader, whole)] == [-1]
        (notice,) = reader.notices()
        assert "has the column `w` string upstream, and cannot get it here" in notice
        full.schemas = {full.table: WIDER}
        again = await full.reader()
        with pytest.raises(SourceError, match="cannot get the column w any longer"):
            await rows(full, again, whole)

    asyncio.run(body())


def test_a_column_with_a_default_is_taken_where_rows_have_a_key_and_that_is_said(place):
    """Damage: an operator does not learn that rows lack the default that they have upstream."""

    async def body():
        place.evolving = frozenset({place.table})
        reader, upper = await begun(place)
        place.database.run("ALTER TABLE t ADD COLUMN w text DEFAULT 'd'", "INSERT INTO t VALUES (1, '1', 'a')")
        whole = await after(reader, upper)
        with pytest.raises(ColumnsAdded):
            await rows(place, reader, whole)
        place.schemas = {place.table: WIDER}
        reader = await place.reader()
        (row,) = await rows(place, reader, whole)
        assert row["w"] == "d"
        assert "have NULL in it, whatever upstream has" in reader.notices()[0]
        place.database.run("UPDATE t SET v = 'b' WHERE id = 0")
        (row,) = await rows(place, reader, await after(reader, whole.upper))
        assert (row["id"], row["w"]) == (0, "d")

    asyncio.run(body())


def test_a_column_that_came_and_went_leaves_one_of_its_name_in_doubt(place):
    """Damage: the values of a column that was dropped stand in the one that has its name now."""

    async def body():
        place.evolving = frozenset({place.table})
        reader, upper = await begun(place)
        place.database.run(
            "ALTER TABLE t ADD COLUMN w text",
            "INSERT INTO t VALUES (1, '1', 'a', 'x')",
            "ALTER TABLE t DROP COLUMN w",
            "ALTER TABLE t ADD COLUMN w text",
        )
        whole = await after(reader, upper)
        assert {row["id"] for row in await rows(place, reader, whole)} == {1}
        place.database.run("INSERT INTO t VALUES (2, '2', 'b', 'new')")
        with pytest.raises(ColumnsAdded) as added:
            await rows(place, reader, await after(reader, whole.upper))
        assert added.value.columns == (Column("w", "string"),)

    asyncio.run(body())


def test_a_column_whose_values_were_passed_over_is_refused_before_it_is_added_where_rows_have_no_key(full):
    """Damage: ALTER TABLE takes a column, and the table is read no further."""

    async def body():
        reader, upper = await begun(full)
        full.database.run("ALTER TABLE t ADD COLUMN w text")
        whole = await after(reader, upper)
        await rows(full, reader, whole)
        await full.ask(WIDER)
        full.database.run("INSERT INTO t VALUES (1, '1', 'a', 'x')")
        await rows(full, reader, await after(reader, whole.upper))
        with pytest.raises(SourceError, match="cannot get the column w any longer"):
            await full.ask(WIDER)

    asyncio.run(body())
