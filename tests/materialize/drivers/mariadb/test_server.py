"""What only a server can do to a transaction: lose the answer of COMMIT, end a session, refuse one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.materialize.drivers.mariadb.conftest import MariaDBEndpoint
from tests.materialize.drivers.sql.claims import NEW, SPEC, commit, contents, opened, rows_of
from tests.materialize.drivers.sql.cutting_proxy import CuttingProxy
from tests.materialize.drivers.sql.endpoint import driver_of

import mariadb_server as mariadb
from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, DefinitionError, FencedError, Unavailable
from strandline.materialize.drivers.mariadb import database
from strandline.materialize.drivers.mariadb.database import MariaDBDatabase
from strandline.materialize.drivers.mariadb.kind import MariaDBDialect, MariaDBTarget
from strandline.materialize.drivers.sql.connection import Sql
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.materialize.protocol.task import NOTHING, Binding, MaterializationSpec
from strandline.options import understood
from strandline.testing.contracts.drivers.world import World, advance_through, write_history
from strandline.testing.doubles import HandClock

pytestmark = pytest.mark.server

Make = Callable[..., MariaDBEndpoint]
LONG = "x" * 500


@pytest.fixture
def proxy(mariadb_server: mariadb.MariaDBServer) -> Iterator[CuttingProxy]:
    """A proxy before the server."""
    made = CuttingProxy(mariadb_server.port, b"\x03COMMIT")
    yield made
    made.close()


def test_a_session_that_leaves_a_transaction_alone_keeps_no_successor_out(make_endpoint: Make) -> None:
    """Damage: a runtime that stopped, and is never killed, keeps the endpoint's rows locked for ever."""
    assert "idle_transaction_timeout = 60" in database.SETTINGS
    endpoint = make_endpoint()

    async def body() -> None:
        stopped, _ = await opened(endpoint)
        await commit(stopped, 2, rows_of((1, "one", NEW)))

        def lock(connection: Any) -> None:
            connection.begin()
            connection.query(Sql("SET SESSION idle_transaction_timeout = 1"))
            connection.query(Sql("SELECT 1 FROM strandline_checkpoints FOR UPDATE"))
            successor, base = asyncio.run(opened(endpoint))
            assert base != NOTHING
            asyncio.run(commit(successor, 3, rows_of((2, "two", NEW))))
            connection.query(Sql("SELECT 1"))

        with pytest.raises(Unavailable):
            await stopped._database.run(lock)
        assert len(await contents(endpoint)) == 2

    asyncio.run(asyncio.wait_for(body(), 150))


@pytest.mark.parametrize("how", ["lost", "done", "fenced"])
def test_a_commit_whose_answer_is_lost_is_looked_up(how: str, proxy: CuttingProxy, make_endpoint: Make) -> None:
    """Damage: stored rows are sent again, or missing rows count as committed."""
    endpoint = make_endpoint(port=proxy.port)
    world = World(endpoint)
    uppers = write_history(world)

    def raise_fence() -> None:
        with closing(endpoint.server.connect(endpoint.name)) as other:
            other.cursor().execute("UPDATE strandline_checkpoints SET fence = fence + 1")

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

    asyncio.run(asyncio.wait_for(body(), 150))


def test_an_idle_session_that_the_server_ended_is_made_anew(make_endpoint: Make) -> None:
    """Damage: the server's `wait_timeout` stops a task that had nothing to do for a night."""
    endpoint = make_endpoint()

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 2, rows_of((1, "one", NEW)))
        number = session._database._inner.thread_id()
        endpoint.run(f"KILL {number}")
        while endpoint.run(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}")[1]:
            pass
        await commit(session, 3, rows_of((2, "two", NEW)))
        assert len(await contents(endpoint)) == 2

    asyncio.run(body())


def test_a_cancelled_commit_ends_at_once_and_whole(make_endpoint: Make) -> None:
    """Damage: a silent server keeps the task, and the process, from ending."""
    endpoint = make_endpoint()

    async def body() -> None:
        session, _ = await opened(endpoint)
        with closing(endpoint.server.connect(endpoint.name)) as other:
            other.begin()
            other.cursor().execute("SELECT * FROM strandline_checkpoints FOR UPDATE")  # the commit waits for it
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(commit(session, 5, rows_of((7, "seven", NEW))), 0.3)
            await session.close()
        again, base = await opened(endpoint)
        assert base == NOTHING
        assert endpoint.rows("t") == []
        await again.close()

    asyncio.run(asyncio.wait_for(body(), 150))


def test_a_wrong_password_and_no_server_are_named(make_endpoint: Make) -> None:
    """Damage: an operator reads a traceback; or the password is in the message."""
    endpoint = make_endpoint()
    where = {"host": "127.0.0.1", "database": endpoint.name, "user": mariadb.USER, "password": "wrong word"}
    for port, error, said in ((endpoint.server.port, ConfigError, "Access denied"), (1, Unavailable, "connect")):
        options = understood("e", MariaDBTarget, {**where, "port": str(port)})
        driver = driver_of(
            SqlSession, MariaDBDialect(), lambda options=options: MariaDBDatabase(HandClock(), options), soft=False
        )
        with pytest.raises(error, match=rf"MariaDB \(127.0.0.1:{port}/.*{said}") as caught:
            asyncio.run(driver.apply(SPEC, {}))
        assert "wrong word" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE t (k bigint, x int) ENGINE = MyISAM", "a table of the engine MyISAM, whose changes are no part"),
        ("CREATE TABLE t (k bigint, x int) ENGINE = MEMORY", "a table of the engine MEMORY"),
        ("CREATE TABLE t (k bigint, x int) ENGINE = Aria TRANSACTIONAL = 0", "a table of the engine Aria"),
        ("CREATE TABLE t (k bigint, x int) ENGINE = InnoDB WITH SYSTEM VERSIONING", "a system-versioned table"),
        ("CREATE SEQUENCE t ENGINE = InnoDB", "a sequence"),
    ],
)
def test_what_is_no_table_with_transactions_is_named(made: str, said: str, make_endpoint: Make) -> None:
    """Damage: the server is said to be busy for ever; or rows are there without the checkpoint that speaks of them."""
    endpoint = make_endpoint()
    endpoint.run(made)
    with pytest.raises(DefinitionError, match=f"'t' cannot be filled, for it is {said}"):
        asyncio.run(endpoint.driver().apply(SPEC, {}))


def test_a_number_that_mariadb_cannot_store_is_named_with_its_column(make_endpoint: Make) -> None:
    """Damage: NaN becomes NULL, or the task stops with words that name nothing."""
    spec = MaterializationSpec(
        "m", (Binding("v", "t", ("k",), Schema((Column("k", "bigint"), Column("x", "double")))),)
    )

    async def body() -> None:
        session, _ = await opened(make_endpoint(), spec=spec)
        with pytest.raises(DefinitionError, match="number nan in column 'x', which MariaDB cannot store.*nanvl"):
            await commit(session, 2, rows_of((1, math.nan, NEW), spec=spec), spec)

    asyncio.run(body())


def test_texts_are_equal_only_if_their_characters_are(make_endpoint: Make) -> None:
    """Damage: by a collation two keys are one, and the second row is refused; or a long key is cut by its index."""
    texts = (
        "a",
        "A",
        "a ",
        "\u00e4",
        "a\u0308",
        "",
        "x" * 500 + "1",
        "x" * 500 + "2",
        "\U0001f30a",
        "\U0001f30b",
        "a\0",
    )
    spec = MaterializationSpec(
        "m", (Binding("v", "t", ("k",), Schema((Column("k", "string"), Column("x", "bigint")))),)
    )

    async def body() -> None:
        endpoint = make_endpoint()
        session, _ = await opened(endpoint, spec=spec)
        await commit(session, 2, rows_of(*((k, n, NEW) for n, k in enumerate(texts)), spec=spec), spec)
        await commit(session, 3, rows_of((texts[0], 0, (True, True)), (texts[6], 6, (True, True)), spec=spec), spec)
        assert sorted(n for _, n in await contents(endpoint, spec)) == [1, 2, 3, 4, 5, 7, 8, 9, 10]

    asyncio.run(body())
