"""What only a server can do to a transaction: lose the answer of COMMIT, end a session, refuse one, or be too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.materialize.drivers.postgres.conftest import PostgresEndpoint
from tests.materialize.drivers.sql.claims import NEW, SPEC, commit, contents, opened, rows_of
from tests.materialize.drivers.sql.cutting_proxy import CuttingProxy

from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, CorruptionError, DefinitionError, FencedError, Unavailable
from strandline.materialize.driver import DriverSpec
from strandline.materialize.drivers.postgres import database
from strandline.materialize.drivers.postgres.kind import PostgresDialect
from strandline.materialize.drivers.sql import evolution
from strandline.materialize.drivers.sql.connection import Sql
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.protocol.messages import Open
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, MaterializationSpec
from strandline.testing.contracts.drivers.world import World, advance_through, write_history
from strandline.testing.doubles import HandClock

pytestmark = pytest.mark.server

Make = Callable[..., PostgresEndpoint]


@pytest.fixture
def proxy(postgres_database: Any) -> Iterator[CuttingProxy]:
    """A proxy before the server."""
    made = CuttingProxy(postgres_database.server.port, b"COMMIT\0")
    yield made
    made.close()


def test_what_slept_in_the_middle_of_an_apply_drops_no_table(
    make_endpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a process has looked, sleeps while its successor fills the table anew, and drops it then."""
    endpoint, real = make_endpoint(), evolution.beforehand
    columns = Column("k", "bigint"), Column("x", "bigint")
    older, again = (
        MaterializationSpec("m", (Binding("v", "t", ("k",), Schema(columns[:backfill]), backfill=backfill),))
        for backfill in (1, 2)
    )

    async def successor() -> None:
        await commit((await opened(endpoint, spec=again))[0], 7, rows_of((1, 2, NEW), spec=again), again)

    def slept(*given: Any) -> evolution.Beforehand:
        found = real(*given)
        monkeypatch.setattr(evolution, "beforehand", real)
        asyncio.run(successor())
        return found

    async def body() -> None:
        await commit((await opened(endpoint))[0], 5, rows_of((1, "one", NEW)))
        monkeypatch.setattr(evolution, "beforehand", slept)
        with pytest.raises(FencedError, match="'t' is filled by a later session"):
            await endpoint.driver().apply(older, {})
        assert endpoint.rows("t") == [{"k": 1, "x": 2}]

    asyncio.run(body())


@pytest.mark.parametrize("how", ["lost", "done", "fenced"])
def test_a_commit_whose_answer_is_lost_is_looked_up(how: str, proxy: CuttingProxy, make_endpoint: Make) -> None:
    """Damage: stored rows are sent again, or missing rows count as committed."""
    endpoint = make_endpoint(port=proxy.port)
    world = World(endpoint)
    uppers = write_history(world)

    def raise_fence() -> None:
        with psycopg.connect(endpoint.where.url, autocommit=True) as other:
            other.execute(f'UPDATE "{endpoint.schema}".strandline_checkpoints SET fence = fence + 1')

    async def body() -> None:
        runtime = world.runtime()
        await advance_through(world, runtime, uppers[:1])
        world.seal(uppers[1])
        proxy.cut = "lost" if how == "lost" else "done"
        if how == "fenced":
            proxy.meanwhile = raise_fence
            with pytest.raises(FencedError, match="another session"):
                await runtime.advance()
            runtime = world.runtime()
        assert await runtime.advance() is (how != "fenced"), "what the other session found was committed"
        world.check(uppers[1])
        await advance_through(world, runtime, uppers[2:])
        world.check(uppers[-1])
        await runtime.close()

    asyncio.run(body())


def test_a_session_that_the_server_ended_commits_nothing_and_the_next_one_goes_on(make_endpoint: Make) -> None:
    """Damage: a restart of the server stops the task for ever, or repeats a transaction."""
    endpoint = make_endpoint()
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'strandline'"

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 2, rows_of((1, "one", NEW)))
        endpoint.run(ended)
        while endpoint.run(ended)[1]:
            pass
        await commit(session, 3, rows_of((2, "two", NEW)))  # an idle connection is made anew

        def ends_itself(connection: Any) -> None:
            connection.begin()
            while endpoint.run(ended)[1]:
                pass
            connection.commit()

        with pytest.raises(Exception, match="terminat"):
            await session._database.run(ends_itself)
        await commit(session, 4, rows_of((3, "three", NEW)))
        assert len(await contents(endpoint)) == 3

    asyncio.run(body())


def test_a_cancelled_commit_ends_at_once_and_whole(make_endpoint: Make) -> None:
    """Damage: a silent server keeps the task, and the process, from ending."""
    endpoint = make_endpoint()

    async def body() -> None:
        session, _ = await opened(endpoint)
        table = endpoint.dialect.qualified("strandline_checkpoints").text
        with psycopg.connect(endpoint.where.url) as other:
            other.execute(f"SELECT * FROM {table} FOR UPDATE")  # the commit waits for it
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(commit(session, 5, rows_of((7, "seven", NEW))), 0.3)
            await session.close()
        again, base = await opened(endpoint)
        assert base == NOTHING
        assert endpoint.rows("t") == []
        await again.close()

    asyncio.run(asyncio.wait_for(body(), 150))


def test_a_session_that_leaves_a_transaction_alone_keeps_no_successor_out(make_endpoint: Make) -> None:
    """Damage: a runtime that stopped, and is never killed, keeps the endpoint's rows locked for ever."""
    assert database.SETTINGS["idle_in_transaction_session_timeout"] == "60s"
    endpoint = make_endpoint()

    async def body() -> None:
        stopped, _ = await opened(endpoint)
        await commit(stopped, 2, rows_of((1, "one", NEW)))

        def lock(connection: Any) -> None:
            connection.begin()
            connection.query(Sql("SELECT set_config('idle_in_transaction_session_timeout', '300ms', true)"))
            connection.query(
                Sql(f"SELECT 1 FROM {endpoint.dialect.qualified('strandline_checkpoints').text} FOR UPDATE")
            )
            successor, base = asyncio.run(opened(endpoint))
            assert base != NOTHING
            asyncio.run(commit(successor, 3, rows_of((2, "two", NEW))))
            connection.query(Sql("SELECT 1"))

        with pytest.raises(Unavailable, match="idle-in-transaction timeout"):
            await stopped._database.run(lock)
        assert len(await contents(endpoint)) == 2

    asyncio.run(asyncio.wait_for(body(), 150))


def test_a_missing_privilege_is_named(make_endpoint: Make) -> None:
    """Damage: an operator reads a traceback."""
    endpoint = make_endpoint()
    endpoint.run("DROP ROLE IF EXISTS reader")
    endpoint.run("CREATE ROLE reader LOGIN")
    reader = make_endpoint(user="reader")
    with pytest.raises(ConfigError, match=r"PostgreSQL \(127.0.0.1.*does not allow it: permission denied for schema"):
        asyncio.run(reader.driver().apply(SPEC, {}))
    missing = make_endpoint()
    missing.run(f'DROP SCHEMA "{missing.schema}"')
    with pytest.raises(ConfigError, match="does not exist"):
        asyncio.run(missing.driver().apply(SPEC, {}))
    reader.close()
    endpoint.run("DROP ROLE reader")


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("on", ["INSERT", "INSERT OR UPDATE OR DELETE"])
def test_rows_that_a_trigger_swallows_are_missed(on: str, delta: bool, make_endpoint: Make) -> None:
    """Damage: rows are missing for good, and the transaction that should have stored them is committed."""
    endpoint, spec = make_endpoint(), MaterializationSpec("m", (replace(SPEC.bindings[0], delta=delta),))

    async def body() -> None:
        session, _ = await opened(endpoint, spec=spec)
        table, function = (endpoint.dialect.qualified(name).text for name in ("t", "g"))
        endpoint.run(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF new.k = 2 THEN RETURN NULL; END IF; RETURN new; END $$"
        )
        endpoint.run(f"CREATE TRIGGER g BEFORE {on} ON {table} FOR EACH ROW EXECUTE FUNCTION {function}()")
        with pytest.raises(CorruptionError, match="'t': of 2 rows to insert 1 were stored: another program's trigger"):
            await commit(session, 2, rows_of((1, "one", NEW), (2, "two", NEW)), spec)
        assert endpoint.checkpoint("m") == NOTHING
        assert endpoint.rows("t") == []

    asyncio.run(body())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE MATERIALIZED VIEW {t} AS SELECT 1 AS k", "a materialized view"),
        ("CREATE SEQUENCE {t}", "a sequence"),
        ("CREATE TYPE {t} AS ENUM ('a')", "a type"),
        ("CREATE UNLOGGED TABLE {t} (k bigint, x text)", "an UNLOGGED table, which PostgreSQL empties after a crash"),
        (
            (
                "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER w FOREIGN DATA WRAPPER w; "
                "CREATE FOREIGN TABLE {t} (k int) SERVER w"
            ),
            "a foreign table",
        ),
    ],
)
def test_what_is_no_lasting_table_is_named(made: str, said: str, make_endpoint: Make) -> None:
    """Damage: the server is said to be busy for ever; or a crash of it empties the table, and no one notices."""
    endpoint = make_endpoint()
    for statement in made.split("; "):
        endpoint.run(statement.format(t=endpoint.dialect.qualified("t").text))
    try:
        with pytest.raises(DefinitionError, match=f"'t' cannot be filled, for it is {said}"):
            asyncio.run(endpoint.driver().apply(SPEC, {}))
    finally:
        endpoint.run("DROP FOREIGN DATA WRAPPER IF EXISTS w CASCADE")


def test_the_table_of_the_checkpoints_must_last_too(make_endpoint: Make) -> None:
    """Damage: a crash of the server takes the checkpoints, and the task's own rows count as another program's."""
    endpoint = make_endpoint()

    async def body() -> None:
        await opened(endpoint)
        endpoint.run(f"ALTER TABLE {endpoint.dialect.qualified('strandline_checkpoints').text} SET UNLOGGED")
        with pytest.raises(DefinitionError, match="'strandline_checkpoints' cannot be filled, for it is an UNLOGGED"):
            await endpoint.driver().apply(SPEC, {})

    asyncio.run(body())


def test_a_schema_of_temporary_tables_is_refused(make_endpoint: Make) -> None:
    """Damage: the tables are gone with the session that made them."""
    driver = SqlDriver(DriverSpec({}, {}, ""), PostgresDialect("pg_temp"), make_endpoint().database)
    with pytest.raises(
        DefinitionError, match="'t' cannot be filled in schema 'pg_temp': its tables end with a session"
    ):
        asyncio.run(driver.validate(SPEC))


def test_another_user_needs_what_the_page_says(make_endpoint: Make) -> None:
    """Damage: the second user of a schema gets words about a privilege, and the page does not say which."""
    endpoint = make_endpoint()
    schema, kept = (f'"{endpoint.schema}"', endpoint.dialect.qualified("strandline_checkpoints").text)
    asyncio.run(_open_and_close(endpoint, SPEC))
    endpoint.run("CREATE ROLE second LOGIN")
    try:
        endpoint.run(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO second")
        options = replace(endpoint.options, user="second")
        driver = SqlDriver(
            DriverSpec({}, {}, ""), endpoint.dialect, lambda: database.PostgresDatabase(HandClock(), options)
        )
        spec = MaterializationSpec("n", (replace(SPEC.bindings[0], resource="u"),))
        with pytest.raises(ConfigError, match="permission denied for table strandline_checkpoints"):
            asyncio.run(driver.apply(spec, {}))
        endpoint.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {kept} TO second")

        async def body() -> None:
            await driver.apply(spec, {})
            session = await driver.open()
            await session.send(Open(spec, "1", WHOLE, {}))
            await session.receive()
            await session.receive()
            await commit(session, 2, rows_of((1, "one", NEW)), spec)
            await session.close()

        asyncio.run(body())
        assert endpoint.rows("u") == [{"k": 1, "x": "one"}]
    finally:
        endpoint.run("DROP OWNED BY second CASCADE")
        endpoint.run("DROP ROLE second")


async def _open_and_close(endpoint: PostgresEndpoint, spec: MaterializationSpec) -> None:
    session, _ = await opened(endpoint, spec=spec)
    await session.close()


def test_an_old_server_and_no_server_are_named(make_endpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a statement that the server does not know fails in the middle of a transaction."""
    with pytest.raises(Unavailable, match=r"PostgreSQL \(127.0.0.1:1/.*does not answer"):
        asyncio.run(make_endpoint(port=1).driver().apply(SPEC, {}))
    monkeypatch.setattr(database, "VERSION_MIN", 99)
    with pytest.raises(ConfigError, match="is version 1[5-9], so .*: version 99 or later"):
        asyncio.run(make_endpoint().driver().apply(SPEC, {}))


def test_a_nul_in_a_text_is_named_with_its_column(make_endpoint: Make) -> None:
    """Damage: the task stops with the server's words about an encoding, and no operator knows where to look."""

    async def body() -> None:
        session, _ = await opened(make_endpoint())
        with pytest.raises(
            DefinitionError, match="in column 'x', which PostgreSQL cannot store: it holds no NUL character"
        ):
            await commit(session, 2, rows_of((1, "a\0b", NEW)))

    asyncio.run(body())


def test_commits_are_durable_whatever_the_role_is_set_to(make_endpoint: Make) -> None:
    """Damage: after a crash the server is behind what it acknowledged, and the history that it needs is compacted."""
    endpoint = make_endpoint()
    role = endpoint.options.user
    try:
        endpoint.run(f"ALTER ROLE {role} SET synchronous_commit = off")

        async def body() -> None:
            session, _ = await opened(endpoint)
            ((found,),) = await session._database.run(
                lambda connection: connection.query(Sql("SHOW synchronous_commit"))
            )
            assert found == "on"
            await session.close()

        asyncio.run(body())
    finally:
        endpoint.run(f"ALTER ROLE {role} RESET synchronous_commit")
