"""Planted defects: each is one that drivers or runtimes have had, and each is caught by the contract."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.materialize.duckdb_endpoint import DuckDBEndpoint

from strandline.errors import StrandlineError
from strandline.materialize.drivers.duckdb.kind import DuckDBDialect
from strandline.materialize.drivers.sql import checkpoints, evolution, tables
from strandline.materialize.drivers.sql.connection import Connection, Sql, identifier
from strandline.materialize.drivers.sql.driver import SqlDriver, SqlSession
from strandline.materialize.protocol import fsm, states
from strandline.materialize.protocol.holds import EVERYTHING
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import WHOLE, Checkpoint, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.materialize.stores import Stores, to_store
from strandline.testing.contracts.drivers.coming_and_going import come_and_go
from strandline.testing.contracts.drivers.driver_contract import (
    DriverContract,
    crash_everywhere,
    empty_everywhere,
    follow,
    hostile_names,
    previewed,
    put_back,
    second_row,
    zombie_everywhere,
)
from strandline.testing.contracts.drivers.fencing_contract import every_order
from strandline.testing.contracts.drivers.losing import lost
from strandline.testing.contracts.drivers.odd_values import odd_values
from strandline.testing.contracts.drivers.world import MakeEndpoint
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, MemorySession, StagingSession, key_of


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[[type[SqlSession]], MakeEndpoint]]:
    """Return how to make endpoints of a kind of session."""
    numbers = count()
    with ExitStack() as closing:

        def make(session: type[SqlSession]) -> DuckDBEndpoint:
            file = DuckDBEndpoint(tmp_path / f"{next(numbers)}.duckdb", session)
            closing.callback(file.kept.close)
            return file

        yield lambda session: lambda: make(session)


class LateSession(SqlSession):
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
    def make_endpoint(self, files: Callable[[type[SqlSession]], MakeEndpoint]) -> MakeEndpoint:
        return files(LateSession)


def caught(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario of the contract, which must fail."""
    with pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)):
        asyncio.run(scenario)


def test_a_table_that_is_not_emptied_for_a_view_that_comes_back_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver that keeps what a dropped view has left, beside the rows of the next one, passes."""
    monkeypatch.setattr(tables, "empty", lambda *_: None)
    caught(come_and_go(files(SqlSession)()))


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
    monkeypatch.setattr(checkpoints, "_ADVANCE", checkpoints._ADVANCE.replace("fence = {5}", "fence >= {5}"))
    caught(zombie_everywhere(files(SqlSession)))


@pytest.mark.parametrize("everything", [True, False])
def test_a_driver_that_does_not_look_for_what_it_left_is_caught(
    everything: bool, files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver that writes on after the endpoint has lost its rows passes the contract."""
    real = checkpoints.advance

    def planted(
        connection: Connection, dialect: DuckDBDialect, held: checkpoints.Claim, checkpoint: Checkpoint
    ) -> None:
        with suppress(StrandlineError):
            real(connection, dialect, held, checkpoint)

    monkeypatch.setattr(checkpoints, "advance", planted)
    caught(lost(files(SqlSession)(), everything=everything))


def test_a_driver_that_does_not_say_what_it_cannot_hold_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver that stores another value than it was given passes the contract."""
    monkeypatch.setattr(DuckDBDialect, "holds", EVERYTHING)
    caught(odd_values(files(SqlSession)()))


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
def test_a_runtime_that_does_not_ask_for_new_keys_is_caught(
    session: type[MemorySession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a key that does not identify its rows goes unnoticed where the endpoint cannot refuse it."""

    async def unasked(*_: object, **__: object) -> None:
        """Ask nothing."""

    monkeypatch.setattr(Task, "_load", unasked)
    caught(second_row(MemoryEndpoint(session)))


def test_a_driver_that_overwrites_a_known_key_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the same, where the endpoint could have."""
    monkeypatch.setattr(tables, "_refuse_known", lambda *_: None)
    caught(second_row(files(SqlSession)()))


def test_a_checkpoint_committed_without_its_rows_is_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that drops rows passes the contract (law M2)."""

    class Planted(SqlSession):
        async def send(self, message: Request) -> None:
            if isinstance(message, StartCommit):
                self._stores.clear()
            await super().send(message)

    caught(follow(files(Planted)()))


def test_rows_committed_without_their_checkpoint_are_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that commits while it stores passes the contract (law M2)."""

    class Planted(SqlSession):
        async def send(self, message: Request) -> None:
            await super().send(message)
            if isinstance(message, Store):
                stores, self._stores = self._stores, {}

                def work(connection: Connection) -> None:
                    for binding, pending in stores.items():
                        tables.store(connection, self._targets[binding], pending)

                await self._database.run(work)

    caught(crash_everywhere(files(Planted)))


def test_dropped_deletes_are_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that never deletes passes the contract."""

    class Planted(SqlSession):
        async def send(self, message: Request) -> None:
            if isinstance(message, Store):
                message = replace(message, rows=message.rows.filter(~message.rows[DELETE].to_numpy()))
            await super().send(message)

    caught(follow(files(Planted)()))


def not_doubled(name: str) -> Sql:
    """Quote a name, but not the quotes in it."""
    return Sql(f'"{name}"')


def normalised(name: str) -> Sql:
    """Quote another name, which looks the same."""
    return identifier(unicodedata.normalize("NFC", name))


@pytest.mark.parametrize("wrong", [not_doubled, normalised])
def test_a_name_that_is_written_as_another_is_caught(
    wrong: Callable[[str], Sql], files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver whose statements a name can change passes the contract."""
    monkeypatch.setattr(DuckDBDialect, "identifier", lambda _, name: wrong(name))
    caught(hostile_names(files(SqlSession)()))


def test_a_driver_that_formats_its_statements_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the same; here a name that holds ``{t}`` is a hole of the statement."""

    def formatted(template: str, **holes: Sql) -> Sql:
        for name, hole in holes.items():
            template = template.replace(f"{{{name}}}", hole.text)
        return Sql(template)

    for module in (tables, evolution):
        monkeypatch.setattr(module, "compose", formatted)
    caught(hostile_names(files(SqlSession)()))


def test_a_preview_that_keeps_what_it_did_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver whose preview makes tables passes the contract."""

    async def kept(driver: SqlDriver, spec: MaterializationSpec) -> tuple[str, ...]:
        return tuple(filter(None, (await driver.apply(spec, {})).action.split("; ")))

    monkeypatch.setattr(SqlDriver, "preview", kept)
    caught(previewed(files(SqlSession)()))


def test_a_tombstone_that_outlives_its_transaction_is_caught() -> None:
    """Damage: a driver in which a key that was deleted once is gone for ever passes the contract."""

    class Planted(KeyValueSession):
        def answers(self, message: Request) -> list[Response]:
            if isinstance(message, Store):
                binding, gone = self.bindings[message.binding], self.endpoint.applied
                rows = message.rows.to_pylist()
                buried = [(binding.resource + key_of(binding, each)) in gone for each in rows]
                gone |= {binding.resource + key_of(binding, each) for each in rows if each[DELETE]}
                message = replace(message, rows=message.rows.filter(pa.array([not each for each in buried])))
            return super().answers(message)

    caught(put_back(MemoryEndpoint(Planted)))


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
def test_a_runtime_that_takes_each_change_by_itself_is_caught(
    session: type[MemorySession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a key that goes and comes back within one transaction is deleted, or stored as if it were new."""

    def alone(stores: Stores, batch: pa.RecordBatch) -> pa.Table:
        return to_store(stores._binding, pa.Table.from_batches([batch]))

    monkeypatch.setattr(Stores, "add", alone)
    caught(put_back(MemoryEndpoint(session)))


def test_a_transaction_that_is_left_out_because_it_has_no_rows_is_caught(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: a driver that has no checkpoint of an empty view passes the contract."""

    class Planted(SqlSession):
        async def _commit(self, checkpoint: Checkpoint) -> None:
            if self._stores:
                await super()._commit(checkpoint)

    caught(empty_everywhere(files(Planted)))


def test_a_table_that_is_emptied_only_for_rows_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver in which a view that is empty now keeps its former rows passes the contract."""

    class Planted(SqlSession):
        def _write(self, connection: Any, held: Any, stores: Any, checkpoint: Checkpoint) -> None:
            with monkeypatch.context() as patch:
                if not stores:
                    patch.setattr(tables, "empty", lambda *_: None)
                super()._write(connection, held, stores, checkpoint)

    caught(empty_everywhere(files(Planted)))


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

    def longer(self: states.Machine, upper: int, *, settles: bool = False) -> int | None:
        if isinstance(self.head, states.Idle) and self.head.progress.extent is not None:
            self = replace(self, head=replace(self.head, progress=replace(self.head.progress, extent=None)))
        return due(self, upper, settles=settles)

    monkeypatch.setattr(states.Machine, "due", longer)
    caught(crash_everywhere(lambda: MemoryEndpoint(KeyValueSession)))


def test_an_open_that_does_not_fence_is_caught(
    files: Callable[..., MakeEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver whose Open changes nothing passes the contract (law M3)."""
    monkeypatch.setattr(checkpoints, "_FENCE", checkpoints._FENCE.replace("fence + 1", "fence"))
    caught(every_order(files(SqlSession), (WHOLE, WHOLE)))


def test_the_scenarios_pass_without_a_defect(files: Callable[..., MakeEndpoint]) -> None:
    """Damage: the tests above show nothing, because everything fails."""
    asyncio.run(follow(files(SqlSession)()))
    asyncio.run(hostile_names(files(SqlSession)()))
    asyncio.run(previewed(files(SqlSession)()))
    asyncio.run(empty_everywhere(files(SqlSession)))
    asyncio.run(zombie_everywhere(files(SqlSession)))
    asyncio.run(put_back(MemoryEndpoint(StagingSession)))
    asyncio.run(put_back(MemoryEndpoint(KeyValueSession)))
    asyncio.run(crash_everywhere(lambda: MemoryEndpoint(StagingSession)))
    asyncio.run(crash_everywhere(lambda: MemoryEndpoint(KeyValueSession)))
