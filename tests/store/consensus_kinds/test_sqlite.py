"""SQLite keeps the contract, across processes too, and says honestly what a failure means."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.errors import ConfigError, CorruptionError, Determinate, Indeterminate
from strandline.store.consensus_kinds import sqlite as module
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch, Versioned
from strandline.testing.contracts.consensus_contract import (
    ConsensusContract,
    OpenConsensus,
    SharedConsensusContract,
    fill,
    step,
)


@pytest.fixture
def open_consensus(tmp_path: Path) -> Iterator[OpenConsensus]:
    """Open handles to one file, and close them all in the end."""
    opened: list[SQLiteConsensus] = []

    def open_one() -> SQLiteConsensus:
        opened.append(SQLiteConsensus(tmp_path / "consensus.db"))
        return opened[-1]

    yield open_one
    for consensus in opened:
        consensus.close()


class TestSQLiteConsensus(ConsensusContract):
    @pytest.fixture
    def open_consensus(self, open_consensus: OpenConsensus) -> OpenConsensus:
        return open_consensus


class TestSharedSQLiteConsensus(SharedConsensusContract):
    @pytest.fixture
    def open_consensus(self, open_consensus: OpenConsensus) -> OpenConsensus:
        return open_consensus


INCREMENT = """
import asyncio, sys
from pathlib import Path
from strandline.store.protocols import CompareAndSet, Committed, Versioned
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

async def main(path, times):
    consensus = SQLiteConsensus(Path(path))
    mismatches = 0
    for _ in range(times):
        while True:
            head = await consensus.head("counter")
            expected, count = (None, 0) if head is None else (head.seqno, int(head.data))
            new = Versioned(0 if expected is None else expected + 1, b"%d" % (count + 1))
            if await consensus.compare_and_set(CompareAndSet("counter", expected, new)) == Committed():
                break
            mismatches += 1
    print(mismatches)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_of_the_increments_of_two_processes_none_is_lost(tmp_path: Path) -> None:
    """Damage: two processes both commit the same version, and one's data is gone."""
    path, times = tmp_path / "consensus.db", 150
    command = [sys.executable, "-c", INCREMENT, str(path), str(times)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=240) for process in processes]
    assert [(process.returncode, error) for process, (_, error) in zip(processes, answers, strict=True)] == [
        (0, "")
    ] * 2
    consensus = SQLiteConsensus(path)
    versions = asyncio.run(consensus.scan("counter", 0, 10_000))
    consensus.close()
    assert [(v.seqno, int(v.data)) for v in versions] == [(n, n + 1) for n in range(2 * times)]
    assert all(out.strip().isdigit() for out, _ in answers)


def test_many_handles_may_open_a_fresh_file_at_once(tmp_path: Path) -> None:
    """Damage: of the processes that start together, some fail because the others are creating the file."""
    for attempt in range(5):
        path = tmp_path / f"{attempt}.db"
        with ThreadPoolExecutor(8) as pool:
            handles = list(pool.map(lambda _, path=path: SQLiteConsensus(path), range(8)))
        assert all(asyncio.run(handle.list_keys()) == [] for handle in handles)
        for handle in handles:
            handle.close()


def test_one_handle_may_be_used_by_several_threads(open_consensus: OpenConsensus) -> None:
    """Damage: a maintenance task and an append of one process corrupt each other's transaction."""
    consensus = open_consensus()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: asyncio.run(fill(consensus, name, 1, 50)), "abcd"))
    for name in "abcd":
        assert len(asyncio.run(consensus.scan(name, 0, 100))) == 50


def test_commits_are_logged_ahead_and_flushed(tmp_path: Path, open_consensus: OpenConsensus) -> None:
    """Damage: an acknowledged commit is lost in a power cut."""
    consensus = open_consensus()
    asyncio.run(fill(consensus, "k", 1, 3))
    connection = consensus._connected()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"


def test_what_was_committed_is_there_after_the_file_is_opened_again(tmp_path: Path) -> None:
    """Damage: a restart forgets."""
    consensus = SQLiteConsensus(tmp_path / "consensus.db")
    asyncio.run(fill(consensus, "k", 1, 3))
    consensus.close()
    assert asyncio.run(consensus.head("k")) == Versioned(3, b"3"), "a closed handle opens its file again"
    consensus.close()
    again = SQLiteConsensus(tmp_path / "consensus.db")
    assert asyncio.run(again.head("k")) == Versioned(3, b"3")
    again.close()


def test_a_busy_database_is_determinate_and_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_consensus: OpenConsensus
) -> None:
    """Damage: a caller looks for a witness that cannot exist, or a refused transaction commits after all."""
    monkeypatch.setattr(module, "BUSY_SECONDS_MAX", 0.0)
    consensus = open_consensus()
    asyncio.run(fill(consensus, "k", 1, 1))
    other = sqlite3.connect(tmp_path / "consensus.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Determinate, match="SQLITE_BUSY"):
        asyncio.run(consensus.compare_and_set(step("k", 1)))
    assert asyncio.run(consensus.head("k")) == Versioned(1, b"1"), "reads do not wait for a writer"
    other.execute("ROLLBACK")
    other.close()
    assert asyncio.run(consensus.compare_and_set(step("k", 1))) == Committed()


class FailingConnection:
    """A connection whose ``nth`` statement that starts with ``verb`` fails, before or after it took effect."""

    def __init__(self, inner: sqlite3.Connection, verb: str, after: bool) -> None:
        self._inner, self._verb, self._after = inner, verb, after

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if statement.strip().startswith(self._verb):
            if self._after:
                self._inner.execute(statement, values)
            raise sqlite3.OperationalError("disk I/O error")
        return self._inner.execute(statement, values)

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def close(self) -> None:
        self._inner.close()


def plant(consensus: SQLiteConsensus, verb: str, after: bool = False) -> None:
    """Replace the handle's connection by a `FailingConnection`."""
    consensus._connection = FailingConnection(consensus._connected(), verb, after)  # type: ignore[assignment]


@pytest.mark.parametrize("verb", ["BEGIN", "INSERT"])
def test_a_failure_before_the_commit_is_determinate_and_is_rolled_back(
    open_consensus: OpenConsensus, verb: str
) -> None:
    """Damage: the next commit includes half of a failed transaction."""
    consensus = open_consensus()
    assert isinstance(consensus, SQLiteConsensus)
    plant(consensus, verb)
    with pytest.raises(Determinate):
        asyncio.run(consensus.compare_and_set(step("k", None, b"lost")))
    consensus.close()
    assert asyncio.run(consensus.compare_and_set(step("other", None, b"kept"))) == Committed()
    assert asyncio.run(consensus.list_keys()) == ["other"]


@pytest.mark.parametrize("after", [False, True])
def test_a_failure_of_the_commit_is_indeterminate_and_the_handle_lives_on(
    open_consensus: OpenConsensus, after: bool
) -> None:
    """Damage: a commit whose flush failed is reported as "did not happen", and is found after the next restart."""
    consensus = open_consensus()
    assert isinstance(consensus, SQLiteConsensus)
    plant(consensus, "COMMIT", after)
    with pytest.raises(Indeterminate):
        asyncio.run(consensus.compare_and_set(step("k", None, b"perhaps")))
    assert (asyncio.run(consensus.head("k")) is not None) is after
    assert asyncio.run(consensus.compare_and_set(step("k", 0 if after else None))) == Committed()


def test_a_rollback_that_fails_drops_the_connection(open_consensus: OpenConsensus) -> None:
    """Damage: the next transaction commits what was refused."""
    consensus = open_consensus()
    assert isinstance(consensus, SQLiteConsensus)

    class Stuck(FailingConnection):
        def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
            if statement == "ROLLBACK":
                raise sqlite3.OperationalError("stuck")
            result = super().execute(statement, values)
            if statement.strip().startswith("INSERT"):
                raise sqlite3.OperationalError("disk full")
            return result

    consensus._connection = Stuck(consensus._connected(), "never", after=False)  # type: ignore[assignment]
    with pytest.raises(Determinate):
        asyncio.run(consensus.compare_and_set(step("k", None, b"refused")))
    assert asyncio.run(consensus.compare_and_set(step("k", None, b"next"))) == Committed()
    assert asyncio.run(consensus.scan("k", 0, 9)) == [Versioned(0, b"next")]


def test_a_batch_of_commits_is_one_transaction(open_consensus: OpenConsensus) -> None:
    """Damage: a tick over 200 idle shards waits for 200 flushes."""
    consensus = open_consensus()
    assert isinstance(consensus, SQLiteConsensus)
    statements: list[str] = []
    consensus._connected().set_trace_callback(statements.append)
    requests = [CompareAndSet(f"k{n}", None, Versioned(0, b"")) for n in range(200)]
    assert asyncio.run(consensus.compare_and_set_many(requests)) == [Committed()] * 200
    assert statements.count("COMMIT") == 1
    assert asyncio.run(consensus.compare_and_set_many(requests)) == [Mismatch()] * 200


def test_a_foreign_database_is_refused_by_name(tmp_path: Path) -> None:
    """Damage: a wrong path looks like a broken disk to the operator."""
    (tmp_path / "text.db").write_text("not a database, however long it is " * 100)
    with pytest.raises(CorruptionError, match=r"text\.db"):
        SQLiteConsensus(tmp_path / "text.db")
    with pytest.raises(ConfigError, match="absent"):
        SQLiteConsensus(tmp_path / "absent" / "consensus.db")
    future = sqlite3.connect(tmp_path / "future.db")
    future.execute("PRAGMA user_version = 99")
    future.close()
    with pytest.raises(ConfigError, match="format 99"):
        SQLiteConsensus(tmp_path / "future.db")


def test_a_database_that_rotted_is_corruption_not_a_failure_to_retry(tmp_path: Path) -> None:
    """Damage: persist retries for ever on a file that must be restored."""
    path = tmp_path / "consensus.db"
    consensus = SQLiteConsensus(path)
    asyncio.run(fill(consensus, "k", 1, 200))
    consensus.close()
    data = bytearray(path.read_bytes())
    data[1024:] = b"\xff" * (len(data) - 1024)
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"consensus\.db"):
        asyncio.run(consensus.head("k"))
    consensus.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_is_deleted_takes_no_more_commits(
    tmp_path: Path, open_consensus: OpenConsensus, *, replaced: bool
) -> None:
    """Damage: after `rm -r` of its location `strandline run` acknowledges writes for days, and none of them is kept."""
    consensus, path = open_consensus(), tmp_path / "consensus.db"
    assert asyncio.run(consensus.compare_and_set(step("k", None, 1))) == Committed()
    for each in tmp_path.iterdir():
        each.unlink()
    if replaced:
        SQLiteConsensus(path).close()
    for _ in range(2):
        with pytest.raises(ConfigError, match="was deleted or replaced while it was in use"):
            asyncio.run(consensus.compare_and_set(step("k", None, 1)))
        with pytest.raises(ConfigError, match="was deleted or replaced while it was in use"):
            asyncio.run(consensus.head("k"))
    assert path.exists() == replaced, "it is not made anew"
