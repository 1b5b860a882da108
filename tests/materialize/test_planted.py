"""Planted defects: each is one that drivers or runtimes have had, and each is caught by the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

from strandline.errors import StrandlineError
from strandline.materialize.driver import Session
from strandline.materialize.drivers import duckdb_checkpoints, duckdb_tables
from strandline.materialize.drivers.duckdb import DuckDBDriver, DuckDBSession
from strandline.materialize.drivers.duckdb_file import DuckDBFile
from strandline.materialize.drivers.duckdb_tables import Target
from strandline.materialize.protocol import fsm, states
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Request,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.materialize.runtime import Materialization
from strandline.testing.contracts.driver_contract import (
    DriverContract,
    MakeEndpoint,
    crash_everywhere,
    follow,
    second_row,
    zombie_everywhere,
)
from strandline.testing.doubles import HandClock
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, MemorySession, StagingSession


class File:
    """A DuckDB file whose sessions are of one kind."""

    fences = True

    def __init__(self, path: Path, session: type[DuckDBSession]) -> None:
        self._file = DuckDBFile(HandClock(), path)
        self._session = session
        self.kept = duckdb.connect(str(path))

    def driver(self) -> DuckDBDriver:
        file, session = self._file, self._session

        class Driver(DuckDBDriver):
            async def open(self) -> Session:
                return session(file)

        return Driver(file)

    def rows(self, table: str) -> list[dict[str, Any]]:
        try:
            return self.kept.sql(f'SELECT * FROM "{table}"').to_arrow_table().to_pylist()
        except duckdb.CatalogException:
            return []

    def checkpoint(self, name: str) -> Checkpoint | None:
        try:
            rows = self.kept.execute("SELECT checkpoint FROM strandline_checkpoints").fetchall()
        except duckdb.CatalogException:
            return NOTHING
        return Checkpoint.decode(rows[0][0]) if rows else NOTHING


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[[type[DuckDBSession]], MakeEndpoint]]:
    """Return how to make endpoints of a kind of session."""
    numbers = count()
    with ExitStack() as closing:

        def make(session: type[DuckDBSession]) -> File:
            file = File(tmp_path / f"{next(numbers)}.duckdb", session)
            closing.callback(file.kept.close)
            return file

        yield lambda session: lambda: make(session)


class LateSession(DuckDBSession):
    """Right, but slow: it commits only after the log has, so the log is ahead of the endpoint."""

    late: Checkpoint | None = None

    async def send(self, message: Request) -> None:
        match message:
            case StartCommit(checkpoint):
                self._said = self._said.then(message)
                self.late = checkpoint
                self._answer(StartedCommit())
            case Acknowledge():
                self._said = self._said.then(message)
                if self.late is not None:
                    await self._commit(self.late)
                    self._answer(Acknowledged())
                self.late = None
            case _:
                await super().send(message)


class TestLateCommit(DriverContract):
    @pytest.fixture
    def make_endpoint(self, files: Callable[[type[DuckDBSession]], MakeEndpoint]) -> MakeEndpoint:
        return files(LateSession)


def caught(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario of the contract, which must fail."""
    with pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)):
        asyncio.run(scenario)


def test_acknowledge_that_applies_again_is_caught() -> None:
    """Damage: a driver that is not idempotent passes the contract."""

    class Planted(StagingSession):
        def acknowledge(self) -> Acknowledged:
            self.endpoint.applied.clear()
            return super().acknowledge()

    caught(crash_everywhere(lambda: MemoryEndpoint(Planted)))


def test_a_fence_that_is_read_but_not_compared_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver that lets zombies commit passes the contract (law M3)."""
    monkeypatch.setattr(duckdb_checkpoints, "_ADVANCE", duckdb_checkpoints._ADVANCE.replace("fence = ?", "fence >= ?"))
    caught(zombie_everywhere(files(DuckDBSession)))


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
def test_a_runtime_that_does_not_ask_for_new_keys_is_caught(
    session: type[MemorySession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a key that does not identify its rows goes unnoticed where the endpoint cannot refuse it."""

    async def unasked(*_: object, **__: object) -> None:
        """Ask nothing."""

    monkeypatch.setattr(Materialization, "_load", unasked)
    caught(second_row(MemoryEndpoint(session)))


def test_a_driver_that_overwrites_a_known_key_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the same, where the endpoint could have."""
    monkeypatch.setattr(duckdb_tables, "_refuse_known", lambda *_: None)
    caught(second_row(files(DuckDBSession)()))


def test_a_checkpoint_committed_without_its_rows_is_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that drops rows passes the contract (law M2)."""

    class Planted(DuckDBSession):
        async def send(self, message: Request) -> None:
            if isinstance(message, StartCommit):
                self._stores.clear()
            await super().send(message)

    caught(follow(files(Planted)()))


def test_rows_committed_without_their_checkpoint_are_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that commits while it stores passes the contract (law M2)."""

    class Planted(DuckDBSession):
        async def send(self, message: Request) -> None:
            await super().send(message)
            if isinstance(message, Store):
                stores, self._stores = self._stores, {}

                def work(connection: duckdb.DuckDBPyConnection) -> None:
                    for binding, rows in stores.items():
                        duckdb_tables.store(connection, Target.of(connection, self._bindings[binding]), rows)

                await self._file.run(work)

    caught(crash_everywhere(files(Planted)))


def test_dropped_deletes_are_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that never deletes passes the contract."""

    class Planted(DuckDBSession):
        async def send(self, message: Request) -> None:
            if isinstance(message, Store):
                message = replace(message, rows=message.rows.filter(~message.rows[DELETE].to_numpy()))
            await super().send(message)

    caught(follow(files(Planted)()))


def test_a_hold_moved_before_acknowledged_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a runtime releases history that its endpoint needs again after a crash."""
    rules = dict(fsm._BY_PAIR)
    rule = rules[states.PersistingCommit, states.CommitPersisted]

    def hasty(machine: states.Machine, head: Any, event: Any) -> fsm.Step:
        machine, actions = rule.apply(machine, head, event)
        return machine, (*fsm._holds(machine, head.committing), *actions)

    rules[states.PersistingCommit, states.CommitPersisted] = replace(rule, apply=hasty)
    monkeypatch.setattr(fsm, "_BY_PAIR", rules)
    caught(crash_everywhere(files(LateSession)))


def test_a_replay_that_is_longer_than_the_first_attempt_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a row that was stored and then went away stays for ever in an endpoint without transactions."""
    due = states.Machine.due

    def longer(self: states.Machine, upper: int) -> int | None:
        if isinstance(self.head, states.Idle) and self.head.progress.extent is not None:
            self = replace(self, head=replace(self.head, progress=replace(self.head.progress, extent=None)))
        return due(self, upper)

    monkeypatch.setattr(states.Machine, "due", longer)
    caught(crash_everywhere(lambda: MemoryEndpoint(KeyValueSession)))


def test_an_open_that_does_not_fence_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver whose Open changes nothing passes the contract (law M3)."""
    monkeypatch.setattr(duckdb_checkpoints, "_FENCE", duckdb_checkpoints._FENCE.replace("fence + 1", "fence"))
    caught(zombie_everywhere(files(DuckDBSession)))


def test_the_scenarios_pass_without_a_defect(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: the tests above show nothing, because everything fails."""
    asyncio.run(follow(files(DuckDBSession)()))
    asyncio.run(zombie_everywhere(files(DuckDBSession)))
    asyncio.run(crash_everywhere(lambda: MemoryEndpoint(StagingSession)))
    asyncio.run(crash_everywhere(lambda: MemoryEndpoint(KeyValueSession)))
