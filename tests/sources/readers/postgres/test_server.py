"""A real server that lacks something, refuses, or does not answer."""

from __future__ import annotations

import asyncio
import socket

import psycopg
import pytest
from msgspec import structs
from tests.sources.readers.postgres.conftest import SCHEMA, after, begin, refused, rows

from strandline.algebra.schema import Column, Schema
from strandline.errors import Unavailable
from strandline.options import understood
from strandline.sources.readers.postgres.kind import KIND
from strandline.sources.readers.postgres.options import PostgresOptions

pytestmark = pytest.mark.server


def test_what_upstream_lacks_is_said_with_what_to_run(place):
    """Damage: an operator must guess why nothing comes."""

    async def open_it():
        await (await place.reader()).snapshot(place.table)

    async def body():
        place.more = {"publication": "q"}
        async with refused(r"no publication 'q'; create it there: CREATE PUBLICATION q FOR TABLE public\.t"):
            await open_it()
        place.more = {}
        place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
        place.database.run("CREATE TABLE u (id int, n int, v text)")
        async with refused(r"there: ALTER PUBLICATION p ADD TABLE public\.u"):
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
        async with refused("leaves out each delete, update; change that there: ALTER PUBLICATION p SET"):
            await (await place.reader()).snapshot("public.t")
        place.database.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete')")
        reader = await place.reader()
        await reader.upstream_frontier()
        assert "TRUNCATE" in reader.notices()[0]
        place.database.run("ALTER PUBLICATION p DROP TABLE t")
        async with refused(r"there: ALTER PUBLICATION p ADD TABLE public\.t$"):
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
        async with refused(r"there: ALTER PUBLICATION p ADD TABLE public\.u"):
            await ask(options(), "public.u", SCHEMA)
        async with refused("has no column missing in the publication; it has id, n, v"):
            await ask(options(), "public.t", Schema((Column("id", "int"), Column("missing", "int"))))
        async with refused(r"no publication 'q'; create it there: CREATE PUBLICATION q FOR TABLE public\.t"):
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
        async with refused("give the role REPLICATION"):
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
