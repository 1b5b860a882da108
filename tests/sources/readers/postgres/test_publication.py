"""A publication that changes: what upstream did not send is never passed over, and the other tables go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.readers.postgres.conftest import SCHEMA, after, begin, refused, rows

from strandline.algebra.schema import ERROR
from strandline.errors import SourceError, Unavailable
from strandline.sources.readers.postgres import statements
from strandline.sources.reclock import NOTHING_READ, Slice

pytestmark = pytest.mark.server

T = ("public", "t")

LEAVES = {
    "the table leaves": ("p FOR TABLE t, u", "ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t"),
    "it is set without the table": (
        "p FOR TABLE t, u",
        "ALTER PUBLICATION p SET TABLE u",
        "ALTER PUBLICATION p SET TABLE t, u",
    ),
    "its rows are filtered": (
        "p FOR TABLE t, u",
        "ALTER PUBLICATION p SET TABLE t WHERE (id < 0), u",
        "ALTER PUBLICATION p SET TABLE t, u",
    ),
    "its filter goes": (
        "p FOR TABLE t WHERE (id < 100), u",
        "ALTER PUBLICATION p SET TABLE t WHERE (id < 0), u",
        "ALTER PUBLICATION p SET TABLE t WHERE (id < 100), u",
    ),
    "its schema leaves": (
        "p FOR TABLES IN SCHEMA public, TABLE other.u",
        "ALTER PUBLICATION p DROP TABLES IN SCHEMA public",
        "ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
    ),
    "it leaves its schema": (
        "p FOR TABLES IN SCHEMA public, TABLE other.u",
        "ALTER TABLE t SET SCHEMA other",
        "ALTER TABLE other.t SET SCHEMA public",
    ),
    "it has another owner, and is of a schema": (
        "p FOR TABLES IN SCHEMA public, TABLE other.u",
        "ALTER TABLE t OWNER TO pg_monitor",
        "ALTER TABLE t OWNER TO CURRENT_USER",
    ),
    "a filter comes beside its schema": (
        "p FOR TABLES IN SCHEMA public, TABLE other.u",
        "ALTER PUBLICATION p ADD TABLE t WHERE (id < 0)",
        "SELECT 1",
    ),
}


def two_tables(place, publication="p FOR TABLE t, u", schema="public"):
    """Have the publication send two tables: public.t, and ``schema``.u."""
    place.database.run(
        "CREATE SCHEMA other",
        f"CREATE TABLE {schema}.u (id int PRIMARY KEY, n int, v text)",
        "DROP PUBLICATION p",
        f"CREATE PUBLICATION {publication}",
    )
    place.schemas = {"public.t": SCHEMA, f"{schema}.u": SCHEMA}


async def begun(place, reader):
    """Make the first steps of all tables; return what was read."""
    firsts = [await begin(place, reader, table) for table in place.schemas]
    upper = firsts[-1].upper
    for table, first in zip(place.schemas, firsts, strict=True):
        await rows(place, reader, Slice(1, first.lower, upper), table=table)
    await reader.commit(upper)  # which lets the snapshot go
    return upper


async def stopped(place, reader, since, why="strandline anew public.t --apply"):
    """Check that ``public.t`` is read no further, and that the other table of the source is."""
    _, other = place.schemas
    name = other.removeprefix("public.")
    ((before,),) = place.database.run(f"SELECT count(*) FROM {name}")
    place.database.run(f"INSERT INTO {name} VALUES ({before + 1}, 1, 'a')")
    later = await after(reader, since)
    async with refused(why):
        await rows(place, reader, later)
    assert [row["id"] for row in await rows(place, reader, later, table=other)][-1] == before + 1


@pytest.mark.parametrize("way", LEAVES)
def test_a_table_that_left_its_publication_and_came_back_is_read_no_further(place, way):
    """Damage: what changed while it was away is missing for good, and no message says so."""
    publication, leaves, returns = LEAVES[way]
    two_tables(place, publication, "other" if "other" in publication else "public")
    table = "other.t" if "SET SCHEMA" in leaves else "t"

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run(leaves, f"INSERT INTO {table} VALUES (1, '1', 'not sent')", returns)
        place.database.run("INSERT INTO t VALUES (2, '2', 'sent')")
        for each in (reader, await place.reader(), await place.reader()):
            await stopped(place, each, upper)
        anew = await rows(place, reader, await begin(place, reader))
        assert [row["id"] for row in anew] == [0, 1, 2], "a table that begins now has what was not sent"

    asyncio.run(body())


STAYS = {
    "another table comes": ("p FOR TABLE t, u", "CREATE TABLE w (x int)", "ALTER PUBLICATION p ADD TABLE w"),
    "another table goes": ("p FOR TABLE t, u, w", "CREATE TABLE w (x int)", "DROP TABLE w"),
    "its schema comes too": ("p FOR TABLE t, u", "SELECT 1", "ALTER PUBLICATION p ADD TABLES IN SCHEMA public"),
    "a column comes": ("p FOR ALL TABLES", "ALTER TABLE t ADD COLUMN w int", "ALTER TABLE t DROP COLUMN w"),
    "the catalog is rewritten": (
        "p FOR TABLES IN SCHEMA public",
        "VACUUM (FULL, FREEZE) pg_publication",
        "VACUUM (FULL, FREEZE) pg_publication_namespace",
    ),
    "it has another owner, and its own entry": (
        "p FOR TABLE t, u",
        "ALTER TABLE t OWNER TO pg_monitor",
        "ALTER TABLE t OWNER TO CURRENT_USER",
    ),
    "its entry is rewritten": (
        "p FOR TABLE t, u",
        "VACUUM (FREEZE) pg_publication_rel",
        "VACUUM FULL pg_publication_rel",
    ),
}


@pytest.mark.parametrize("way", STAYS)
def test_a_table_whose_changes_were_all_sent_is_read_on(place, way):
    """Damage: a table of a thousand million rows is read anew for nothing."""
    publication, before, then = STAYS[way]
    if ", w" in publication:
        place.database.run(before)
    two_tables(place, publication)

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run(*[before][", w" in publication :], "INSERT INTO t VALUES (1, '1', 'sent')", then)
        place.database.run("INSERT INTO t (id, n, v) VALUES (2, '2', 'sent')")
        for each in (reader, await place.reader()):
            assert [row["id"] for row in await rows(place, each, await after(each, upper))] == [1, 2]

    asyncio.run(body())


def test_a_table_goes_on_by_the_entry_that_is_left(place):
    """Damage: a table stops though at each moment some entry of the publication had it."""
    two_tables(place)

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run("ALTER PUBLICATION p ADD TABLES IN SCHEMA public")
        await reader.upstream_frontier()
        place.database.run("ALTER PUBLICATION p DROP TABLE t", "INSERT INTO t VALUES (1, '1', 'sent')")
        for each in (reader, await place.reader()):
            assert [row["id"] for row in await rows(place, each, await after(each, upper))] == [1]

    asyncio.run(body())


def test_a_partition_that_was_detached_for_a_while_is_read_no_further(place):
    """Damage: what changed in a partition while its parent did not have it is missing."""
    place.database.run(
        "CREATE TABLE whole (id int, n text, v text) PARTITION BY RANGE (id)",
        "ALTER TABLE whole ATTACH PARTITION t FOR VALUES FROM (0) TO (10)",
    )
    two_tables(place, "p FOR TABLE whole, u")

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run(
            "ALTER TABLE whole DETACH PARTITION t",
            "INSERT INTO t VALUES (1, '1', 'not sent')",
            "ALTER TABLE whole ATTACH PARTITION t FOR VALUES FROM (0) TO (10)",
        )
        await stopped(place, reader, upper)

    asyncio.run(body())


def test_a_table_that_is_renamed_for_a_while_is_read_no_further(place):
    """Damage: what changed under the other name is missing."""
    two_tables(place, "p FOR ALL TABLES")

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run(
            "ALTER TABLE t RENAME TO s", "INSERT INTO s VALUES (1, '1', 'under a name')", "ALTER TABLE s RENAME TO t"
        )
        await stopped(place, reader, upper, "renamed to public.s upstream.*strandline anew public.t")

    asyncio.run(body())


def test_a_publication_that_was_altered_stops_each_table_that_was_read(place):
    """Damage: each update of a while is missing for good, and no message says so."""
    two_tables(place)

    async def body():
        reader = await place.reader()
        upper = await begun(place, reader)
        place.database.run("ALTER PUBLICATION p SET (publish = 'insert')")
        async with refused("leaves out each delete, update; first change that there.*strandline anew public.t"):
            await rows(place, reader, await after(reader, upper))
        async with refused("there: ALTER PUBLICATION p SET"):
            await reader.snapshot("public.t")
        place.database.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
        for each in (reader, await place.reader()):
            async with refused("strandline anew public.t --apply"):
                await rows(place, each, await after(each, upper))
        assert await rows(place, reader, await begin(place, reader))

    asyncio.run(body())


def test_a_snapshot_from_before_the_publication_was_altered_is_not_begun_with(place):
    """Damage: a table begins with a snapshot and lacks the changes just after it."""

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        begun = await reader.snapshot("public.t")
        place.database.run(*LEAVES["the table leaves"][1:2], "INSERT INTO t VALUES (1, '1', 'not sent')")
        place.database.run(*LEAVES["the table leaves"][2:])
        first = Slice(1, NOTHING_READ, (await reader.upstream_frontier()).join(begun))
        with pytest.raises(Unavailable, match="altered since the snapshot.*: another one is taken$"):
            await rows(place, reader, first)
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0, 1]

    asyncio.run(body())


@pytest.mark.parametrize("way", ["dropped", "renamed"])
def test_a_publication_that_was_dropped_is_a_definite_error_that_names_it(place, way):
    """Damage: the source waits for ever for an answer that never comes."""
    two_tables(place)
    goes, comes = {
        "dropped": ("DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE t, u"),
        "renamed": ("ALTER PUBLICATION p RENAME TO q", "ALTER PUBLICATION q RENAME TO p"),
    }[way]

    async def body():
        reader = await place.reader()
        await begun(place, reader)
        place.database.run(goes)
        for each in (reader, await place.reader()):
            async with refused("publication 'p' of database .* was dropped"):
                await each.upstream_frontier()
        place.database.run("INSERT INTO t VALUES (1, '1', 'not sent')", comes)
        for each in (reader, await place.reader()):
            async with refused('publication "p" does not exist, or did not for a while.*strandline anew'):
                await each.upstream_frontier()

    asyncio.run(body())


@pytest.mark.parametrize("version", [130000, 150000])
def test_servers_from_before_schemas_were_published_are_asked_of_tables_alone(place, version):
    """Damage: an older server refuses the question, so nothing of it is read."""
    with place.database.session() as session:
        for query in (statements.tables_query("p", None, version), statements.standing_query("s", "p", [T], version)):
            assert ("pg_publication_namespace" in query.as_string()) == (version >= 150000)
            assert "table" in str(session.execute(query).fetchone())


@pytest.mark.parametrize("everything", [False, True], ids=["tables", "all tables"])
def test_a_look_learns_of_the_tables_that_it_asks_for(place, everything):
    """Damage: each tick costs with every table that is published; or a table is missed because of its name."""
    odd = ("o'dd {}", '\\ "a",\nb%s')
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in odd)
    place.database.run(
        """CREATE SCHEMA "o'dd {}" """,
        f"CREATE TABLE {quoted} (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY, x int)",
        "CREATE PUBLICATION q FOR " + ("ALL TABLES" if everything else f"TABLE t, u, {quoted}"),
    )
    place.more = {"publication": "q"}

    async def body():
        server = (await place.reader())._server
        there = {(table.schema, table.name): table for table in await server.tables(None)}
        assert there.keys() == {T, ("public", "u"), odd}
        for asked in ([], [T], [odd, T], [("o'dd {}", "t"), ("public", odd[1])], [("public", "none")]):
            found = {name: table for name, table in there.items() if name in asked}
            assert {(table.schema, table.name): table for table in await server.tables(asked)} == found
            assert (await server.standing(asked)).published == {name: found[name].published for name in found}
        assert there[T].published.shape.columns.keys() == {"id", "n", "v"}

    asyncio.run(body())


def test_a_server_that_is_too_old_is_refused_by_its_version(place, monkeypatch):
    """Damage: the source waits for ever, and the reason is a column of the catalog that the server does not have."""
    monkeypatch.setattr(statements, "VERSION_MIN", 990_000)

    async def body():
        async with refused(r"PostgreSQL \(127.*\) has version \d+: a source needs 99 or later"):
            await (await place.reader()).upstream_frontier()

    asyncio.run(body())


def test_a_table_that_joins_while_a_snapshot_is_open_disturbs_no_other(place):
    """Damage: every table of a source waits until the largest one is copied, since one more was published."""
    two_tables(place, "p FOR TABLE t")

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        begun = await reader.snapshot("public.t")
        place.database.run("ALTER PUBLICATION p ADD TABLE u")
        with pytest.raises(SourceError, match="ADD TABLE public.u"):
            await reader.snapshot("public.u")
        first = Slice(1, NOTHING_READ, (await reader.upstream_frontier()).join(begun))
        assert [row["id"] for row in await rows(place, reader, first)] == [0]

    asyncio.run(body())


def test_many_tables_begin_with_one_snapshot(place):
    """Damage: a statement that is sent often is prepared, which a session for replication refuses: no table begins."""
    tables = [f"public.many_{n}" for n in range(8)]
    place.schemas = dict.fromkeys(tables, SCHEMA)
    for table in tables:
        place.database.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text)",
            f"INSERT INTO {table} VALUES (1, 1, 'a')",
            f"ALTER PUBLICATION p ADD TABLE {table}",
        )

    async def body():
        reader = await place.reader()
        begun = [await begin(place, reader, table) for table in tables]
        for table, each in zip(tables, begun, strict=True):
            assert [row["id"] for row in await rows(place, reader, each, table=table)] == [1]

    asyncio.run(body())


def test_a_policy_that_hides_rows_from_the_role_is_no_empty_snapshot(place):
    """Damage: rows that row security hides from the role are missing for good, though their changes come."""
    place.database.run(
        "DROP ROLE IF EXISTS sees_less",
        "CREATE ROLE sees_less LOGIN REPLICATION",
        "GRANT SELECT ON t TO sees_less",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY odd ON t USING (id % 2 = 1)",
    )
    place.more = {"user": "sees_less"}

    async def body():
        reader = await place.reader()
        async with refused("row-level security policy for table .t.*BYPASSRLS"):
            await rows(place, reader, await begin(place, reader))
        place.database.run("ALTER ROLE sees_less BYPASSRLS")
        assert [row["id"] for row in await rows(place, reader, await begin(place, reader))] == [0]
        await place.close()
        place.database.run("DROP OWNED BY sees_less", "DROP ROLE sees_less")

    asyncio.run(body())


def test_a_row_that_comes_by_the_filter_without_its_large_value_is_an_error_of_its_key(place):
    """Damage: a table stops, for a row whose value upstream does not send; or the row has NULL in its place."""
    place.database.run(
        "CREATE TABLE s (id int, n int, v text, PRIMARY KEY (id, n))",
        "ALTER TABLE s ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO s VALUES (1, 0, repeat('x', 9000))",
        "ALTER PUBLICATION p ADD TABLE s WHERE (n > 0)",
    )
    place.table, place.schemas = "public.s", {"public.s": SCHEMA}

    async def body():
        reader = await place.reader()
        first = await begin(place, reader)
        assert await rows(place, reader, first) == []
        place.database.run("UPDATE s SET n = 1", "UPDATE s SET v = 'y'")
        came, mended = await rows(place, reader, await after(reader, first.upper))
        assert (came["id"], came["n"]) == (1, 1)
        assert "upstream did not send a large value" in came[ERROR]
        assert (mended["v"], ERROR in mended) == ("y", False)

    asyncio.run(body())
