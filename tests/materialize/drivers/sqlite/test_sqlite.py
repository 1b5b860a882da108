"""SQLite keeps the contract, does what every SQL endpoint does, and what is its own: locks, values, files."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.materialize.drivers.sql.claims import NEW, SPEC, SqlClaims, commit, contents, opened, rows_of
from tests.materialize.drivers.sql.endpoint import SqlEndpoint, driver_of

from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, CorruptionError, DefinitionError, FencedError, Unavailable
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.materialize.drivers.sqlite.file import SQLiteFile
from strandline.materialize.drivers.sqlite.kind import SQLiteDialect
from strandline.materialize.protocol.task import NOTHING, Binding, MaterializationSpec
from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.fencing_contract import FencingContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract
from strandline.testing.contracts.drivers.world import World, advance_through, write_history
from strandline.testing.hostile import HOSTILE


class SQLiteEndpoint(SqlEndpoint):
    """One file."""

    unnameable = tuple(name for name in HOSTILE if "\0" in name)
    evolves = False
    system = "SQLite"

    def __init__(self, path: Path, connect: Callable[..., Any] = sqlite3.connect, **how: Any) -> None:
        super().__init__(**how)
        self.path = path
        self.connect = connect
        self.kept = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.kept.execute("PRAGMA journal_mode = WAL")

    @property
    def dialect(self) -> SQLiteDialect:
        return SQLiteDialect()

    def database(self) -> SQLiteFile:
        return SQLiteFile(self.path, connect=self.connect)

    def run(self, text: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = self.kept.execute(text, values)
        return [column for column, *_ in found.description or ()], found.fetchall()

    def missing(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows as a reader takes them who knows the page of this endpoint."""
        return [
            {name: math.nan if value == "NaN" else value for name, value in row.items()} for row in super().rows(table)
        ]


@pytest.fixture
def make_endpoint(tmp_path: Path) -> Iterator[Callable[..., SQLiteEndpoint]]:
    """Each endpoint is a file of its own."""
    numbers, made = count(), list[SQLiteEndpoint]()

    def make(**how: Any) -> SQLiteEndpoint:
        made.append(SQLiteEndpoint(tmp_path / f"{next(numbers)}.db", **how))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.kept.close()


class TestSQLite(DriverContract, FencingContract, SplitsContract, SplitsUnderFaultsContract):
    pass


class TestSQLiteTables(SqlClaims):
    pass


class BrokenCommit:
    """A connection whose COMMIT fails, before its effect or after; "fenced": after, and another session opens then."""

    def __init__(self, broken: list[str], path: str, **how: Any) -> None:
        self._inner = sqlite3.connect(path, **how)
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, text: str, *values: Any) -> Any:
        how = self._broken.pop() if self._broken and text == "COMMIT" else "fine"
        done = None if how == "lost" else self._inner.execute(text, *values)
        if how == "fenced":
            self._inner.execute("UPDATE strandline_checkpoints SET fence = fence + 1")
        if how != "fine":
            raise sqlite3.OperationalError("disk I/O error")
        return done


@pytest.mark.parametrize("how", ["lost", "done", "fenced"])
def test_a_commit_of_unknown_outcome_is_looked_up(how: str, make_endpoint: Callable[..., SQLiteEndpoint]) -> None:
    """Damage: stored rows are sent again, or missing rows count as committed."""
    broken: list[str] = []
    world = World(make_endpoint(connect=lambda path, **given: BrokenCommit(broken, path, **given)))
    uppers = write_history(world)

    async def body() -> None:
        runtime = world.runtime()
        await advance_through(world, runtime, uppers[:1])
        world.seal(uppers[1])
        broken.append(how)
        if how == "fenced":
            with pytest.raises(FencedError, match="another session"):
                await runtime.advance()
            runtime = world.runtime()
        assert await runtime.advance() is (how != "fenced"), "what the other session found was committed"
        world.check(uppers[1])
        await advance_through(world, runtime, uppers[2:])
        world.check(uppers[-1])

    asyncio.run(body())


def test_a_lock_that_another_program_holds_is_named(make_endpoint: Callable[..., SQLiteEndpoint]) -> None:
    """Damage: a program that writes the file makes the task hang silently."""
    endpoint = make_endpoint()
    driver = driver_of(SqlSession, SQLiteDialect(), lambda: SQLiteFile(endpoint.path, lock_wait_s=0.1), soft=False)
    endpoint.run("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="0.db is locked by another process.*try again"):
        asyncio.run(driver.apply(SPEC, {}))
    endpoint.run("ROLLBACK")
    assert asyncio.run(driver.apply(SPEC, {})).action == "created table 't'"


def test_readers_do_not_hold_the_writer_up(make_endpoint: Callable[..., SQLiteEndpoint]) -> None:
    """Damage: one slow reader stops the task."""
    endpoint = make_endpoint()

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 2, rows_of((1, "one", NEW)))
        endpoint.run("BEGIN")
        assert endpoint.run("SELECT count(*) FROM t")[1] == [(1,)]
        await commit(session, 3, rows_of((2, "two", NEW)))
        assert endpoint.run("SELECT count(*) FROM t")[1] == [(1,)], "a reader sees one moment"
        endpoint.run("COMMIT")
        assert len(await contents(endpoint)) == 2

    asyncio.run(body())


@pytest.mark.parametrize("delta", [False, True])
def test_rows_that_a_trigger_swallows_are_missed(delta: bool, make_endpoint: Callable[..., SQLiteEndpoint]) -> None:
    """Damage: rows are missing for good, and the transaction that should have stored them is committed."""
    endpoint, spec = make_endpoint(), MaterializationSpec("m", (replace(SPEC.bindings[0], delta=delta),))

    async def body() -> None:
        session, _ = await opened(endpoint, spec=spec)
        endpoint.run("CREATE TRIGGER g BEFORE INSERT ON t WHEN new.k = 2 BEGIN SELECT raise(IGNORE); END")
        with pytest.raises(CorruptionError, match="'t': of 2 rows to insert 1 were stored: another program's trigger"):
            await commit(session, 2, rows_of((1, "one", NEW), (2, "two", NEW)), spec)
        assert endpoint.checkpoint("m") == NOTHING
        assert endpoint.rows("t") == []

    asyncio.run(body())


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    """Damage: an operator reads a traceback."""
    (tmp_path / "text.db").write_text("not a database, but long enough to have a header of one hundred bytes" * 3)
    for path in (tmp_path / "text.db", tmp_path / "no" / "such" / "directory.db"):
        driver = driver_of(SqlSession, SQLiteDialect(), lambda path=path: SQLiteFile(path), soft=False)
        with pytest.raises(ConfigError, match=f"SQLite file {path} cannot be opened"):
            asyncio.run(driver.apply(SPEC, {}))


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        ("SQLite_mine", ("k",), "keeps names that begin with 'sqlite_'"),
        ("t", ("rowid", "OID", "_rowid_"), "nothing is left to call a row's number by"),
    ],
)
def test_what_sqlite_keeps_for_itself_is_refused(
    table: str, columns: tuple[str, ...], said: str, make_endpoint: Callable[..., SQLiteEndpoint]
) -> None:
    """Damage: the task fails later, with SQLite's own words; or another row is deleted than was meant."""
    schema = Schema(tuple(Column(name, "bigint") for name in columns))
    with pytest.raises(DefinitionError, match=said):
        asyncio.run(
            make_endpoint().driver().validate(MaterializationSpec("m", (Binding("v", table, columns[:1], schema),)))
        )


def test_a_column_may_have_the_name_of_the_rows_number(make_endpoint: Callable[..., SQLiteEndpoint]) -> None:
    """Damage: rows are deleted by the values of a column that is called rowid."""
    endpoint = make_endpoint()
    schema = Schema((Column("k", "bigint"), Column("rowid", "bigint"), Column("oid", "bigint")))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), schema),))

    async def body() -> None:
        session, _ = await opened(endpoint, spec=spec)
        await commit(session, 2, rows_of((1, 2, 2, NEW), (2, 1, 1, NEW), spec=spec), spec)
        await commit(session, 3, rows_of((1, 2, 2, (True, True)), spec=spec), spec)
        assert await contents(endpoint, spec) == [(2, 1, 1)]

    asyncio.run(body())
