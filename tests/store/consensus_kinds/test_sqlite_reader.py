"""SQLite read by another process: committed versions are visible, and no file changes or appears."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.errors import ConfigError, CorruptionError, Determinate
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus, SQLiteReader
from strandline.testing.contracts.consensus_contract import fill, step

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that no process has open: ten versions of one key, one of another."""
    place = tmp_path / "consensus.db"
    consensus = SQLiteConsensus(place)
    asyncio.run(fill(consensus, "k", 1, 10))
    asyncio.run(fill(consensus, "l", 1, 1))
    consensus.close()
    return place


def everything(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Each file of a directory: its bytes, and when it was changed."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def read(path: Path) -> tuple[object, ...]:
    """The answers of all read methods."""
    reader = SQLiteReader(path)

    async def ask() -> tuple[object, ...]:
        return await reader.head("k"), await reader.scan("k", 3, 4), await reader.list_keys(), await reader.head("none")

    return asyncio.run(ask())


def test_a_reader_returns_what_the_writer_returns_and_leaves_no_trace(path: Path) -> None:
    """Damage: a reader leaves files of its own user there, and the writer cannot open its database."""
    before = everything(path.parent)
    closed = read(path)
    assert everything(path.parent) == before
    consensus = SQLiteConsensus(path)

    async def ask() -> tuple[object, ...]:
        return await consensus.head("k"), await consensus.scan("k", 3, 4), await consensus.list_keys(), None

    assert asyncio.run(ask()) == closed == read(path)
    consensus.close()


def test_a_database_that_a_writer_has_open_or_left_is_read_too(path: Path) -> None:
    """Damage: a reader beside the writer sees only what was there when the writer began."""
    consensus = SQLiteConsensus(path)
    asyncio.run(consensus.compare_and_set(step("k", 10)))
    assert read(path)[0].seqno == 11
    consensus.close()
    crash = multiprocessing.get_context("fork").Process(target=_commit_and_crash, args=(path,))
    crash.start()
    crash.join()
    assert path.with_name("consensus.db-wal").stat().st_size, "it died with its log"
    assert read(path)[0].seqno == 12


def _commit_and_crash(path: Path) -> None:
    asyncio.run(SQLiteConsensus(path).compare_and_set(step("k", 11)))
    os._exit(9)


def test_reads_among_writers_that_come_and_go_are_each_of_one_moment(path: Path) -> None:
    """Damage: pages from before and after a write make a state that never existed."""

    def write() -> None:
        for seqno in range(10, 60):
            consensus = SQLiteConsensus(path)
            asyncio.run(consensus.compare_and_set(step("k", seqno)))
            consensus.close()

    seen = [10]
    reader = SQLiteReader(path)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        while not writing.done() or seen[-1] < 60:
            found = asyncio.run(reader.scan("k", 0, 100))
            assert [each.seqno for each in found] == list(range(1, len(found) + 1))
            seen.append(found[-1].seqno)
        writing.result()
    assert seen == sorted(seen)


def test_another_user_may_read_what_it_may_not_write(path: Path) -> None:
    """Damage: an audit of a read-only copy is refused."""
    if os.getuid():
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are closed to others
        Path(directory).chmod(0o755)
        copy = Path(shutil.copy(path, directory))
        copy.chmod(0o644)
        context = multiprocessing.get_context("fork")
        result = context.SimpleQueue()
        other = context.Process(target=_read_as_nobody, args=(copy, result))
        other.start()
        other.join()
    assert result.get() == 10


def _read_as_nobody(path: Path, result: multiprocessing.SimpleQueue) -> None:
    os.setuid(NOBODY)
    try:
        result.put(read(path)[0].seqno)
    except BaseException as error:  # noqa: BLE001  # the parent reports it
        result.put(repr(error))


def test_a_missing_database_is_refused_and_not_created(tmp_path: Path) -> None:
    """Damage: a mistyped path becomes an empty location, which looks healthy."""
    for absent in (tmp_path / "consensus.db", tmp_path / "absent" / "consensus.db"):
        with pytest.raises(ConfigError, match=r"there is no consensus database .*consensus\.db"):
            SQLiteReader(absent)
        with pytest.raises(ConfigError, match=r"there is no consensus database .*consensus\.db"):
            SQLiteConsensus(absent, existing=True)
    assert list(tmp_path.iterdir()) == []
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(ConfigError, match="nothing was stored there yet"):
        SQLiteReader(empty)


def test_a_foreign_file_is_refused_by_name(tmp_path: Path, path: Path) -> None:
    """Damage: a wrong path looks like a broken disk to the operator."""
    (tmp_path / "text.db").write_text("not a database, however long it is " * 100)
    with pytest.raises(CorruptionError, match=r"text\.db"):
        SQLiteReader(tmp_path / "text.db")
    future = sqlite3.connect(tmp_path / "future.db")
    future.execute("PRAGMA user_version = 99")
    future.close()
    with pytest.raises(ConfigError, match="format 99"):
        SQLiteReader(tmp_path / "future.db")
    reader = SQLiteReader(path)
    path.unlink()
    with pytest.raises(Determinate, match=r"consensus\.db cannot be read"):
        asyncio.run(reader.head("k"))


def test_opening_an_existing_database_writes_nothing(path: Path) -> None:
    """Damage: a process that opens the location waits for the writer, and blocks it."""
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # the only write lock is taken
    log = path.with_name("consensus.db-wal").stat()
    opened = SQLiteConsensus(path, existing=True)
    assert asyncio.run(opened.head("k")) is not None
    assert path.with_name("consensus.db-wal").stat() == log
    opened.close()
    blocker.close()
