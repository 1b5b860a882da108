"""What all staged drivers share keeps the contract, and mistakes in it do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.materialize.drivers.staged.memory_lake import MemoryFormat, MemoryLake
from tests.materialize.drivers.staged.pushed_tables import AddedContract, PushedTables

from strandline.errors import StrandlineError
from strandline.materialize.drivers.staged import driver as driver_module
from strandline.materialize.drivers.staged import session as session_module
from strandline.materialize.drivers.staged.applying import Applier, Entry
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import Change, Snapshot
from strandline.materialize.protocol.messages import Acknowledge, Acknowledged, Request, StartCommit
from strandline.materialize.protocol.task import Checkpoint
from strandline.testing.contracts.drivers.driver_contract import (
    DriverContract,
    crash_everywhere,
    empty_everywhere,
    follow,
    put_back,
    zombie_everywhere,
)
from strandline.testing.contracts.drivers.losing import lost


@pytest.mark.time_limit(600)
class TestStaged(DriverContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], MemoryLake]:
        return MemoryLake


class TestStagedThatIsAddedTo(AddedContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], PushedTables]:
        return lambda: PushedTables(MemoryLake(), stride=3)


def caught(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario of the contract, which must fail."""
    with pytest.raises((AssertionError, StrandlineError, FileNotFoundError, pytest.fail.Exception)):
        asyncio.run(scenario)


def test_an_apply_that_is_not_idempotent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: rows are stored twice after a crash between the apply and the log's record of it."""

    class Forgets:
        def __init__(self, table: Any, number: int) -> None:
            self.table, self.number = table, number

        def __getattr__(self, name: str) -> Any:
            return getattr(self.table, name)

        def snapshot(self, writer: str) -> Snapshot:
            return replace(self.table.snapshot(writer), reached=self.number - 1)

    class Planted(Applier):
        def apply(self, table: Any, entry: Entry) -> bool:
            return super().apply(Forgets(table, entry.number), entry)  # type: ignore[arg-type]

    monkeypatch.setattr(session_module, "Applier", Planted)
    monkeypatch.setattr(driver_module, "Applier", Planted)
    asyncio.run(follow(MemoryLake()))
    caught(crash_everywhere(MemoryLake))


def test_a_transaction_that_a_table_does_not_remember_is_caught() -> None:
    """Damage: the same, where the commit leaves its number out."""

    class Planted(MemoryFormat):
        def commit(self, seen: Snapshot, change: Change) -> bool:
            return super().commit(seen, replace(change, number=seen.reached))

    caught(follow(MemoryLake(form=Planted)))


def test_files_that_are_named_before_they_are_written_are_caught() -> None:
    """Damage: the log has committed files that a crash has kept from being written."""

    class Planted(StagedSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.late: list[tuple[dict[str, bytes], str, bytes]] = []

        def _staged(self, checkpoint: Checkpoint) -> dict[str, Any]:
            patch = super()._staged(checkpoint)
            for table in self._tables.values():
                files = table.place.files  # type: ignore[attr-defined]
                self.late += [(files, name, files.pop(name)) for name in table.place.below(self._directory)]
            return patch

        def _acknowledge(self) -> dict[str, Any]:
            for files, name, data in self.late:
                files[name] = data
            self.late.clear()
            return super()._acknowledge()

    asyncio.run(follow(MemoryLake(Planted)))
    caught(crash_everywhere(lambda: MemoryLake(Planted)))


def test_an_acknowledgement_before_the_apply_is_caught() -> None:
    """Damage: a Load is answered from a table that lacks the transaction before."""

    class Planted(StagedSession):
        async def send(self, message: Request) -> None:
            if isinstance(message, Acknowledge):
                self._said = self._said.then(message)
                self._answer(Acknowledged())
                return
            if isinstance(message, StartCommit):
                self._changed(self._acknowledge())
            await super().send(message)

    caught(follow(MemoryLake(Planted)))


def test_a_cleaning_that_removes_named_files_is_caught() -> None:
    """Damage: a restart removes what the log has committed and no table has yet."""

    class Planted(StagedSession):
        def _acknowledge(self) -> dict[str, Any]:
            for table in self._tables.values():
                table.place.files.clear()  # type: ignore[attr-defined]
            return super()._acknowledge()

    caught(crash_everywhere(lambda: MemoryLake(Planted)))


def test_a_replacement_that_keeps_former_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: rows of a crashed first transaction, or of an older backfill, stay for ever."""
    monkeypatch.setattr(Applier, "_exchanged", lambda self, table, seen, work: ((), ()))
    caught(put_back(MemoryLake()))


def test_a_loss_that_no_one_looks_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an older version of a table is put in its place, and the next transaction is added to that."""

    class Trusts(Applier):
        def apply(self, table: Any, entry: Entry) -> bool:
            seen = table.snapshot(entry.writer)
            due = entry if seen is None else Entry(entry.writer, seen.reached + 1, entry.work)
            return super().apply(table, due)

    asyncio.run(lost(MemoryLake(), everything=False))
    monkeypatch.setattr(session_module, "Applier", Trusts)
    caught(lost(MemoryLake(), everything=False))


def test_the_scenarios_pass_without_a_mistake() -> None:
    """Damage: the tests above show nothing, because everything fails."""
    asyncio.run(follow(MemoryLake()))
    asyncio.run(put_back(MemoryLake()))
    asyncio.run(empty_everywhere(MemoryLake))
    asyncio.run(zombie_everywhere(MemoryLake))
