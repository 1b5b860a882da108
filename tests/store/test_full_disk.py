"""On a full disk nothing is lost, messages give the operating system's reason, and what is stored can be read."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import sqlite3

import pytest

from small_disk import CHUNK_BYTES, fill, mounted
from strandline.errors import Determinate, Indeterminate, StoreError
from strandline.store.blob_kinds import file as file_store
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.consensus_kinds import sqlite
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus, SQLiteReader
from strandline.store.protocols import Committed
from strandline.testing.contracts.consensus_contract import step

REASON = "No space left on device"
PAGES = 16
"""More than a commit of five pages and its log need."""


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte."""
    with mounted(tmp_path / "disk", "1m") as root:
        if root is None:
            pytest.skip("only root, on a machine that allows it, can mount a small file system")
        yield root


def stored(root):
    """A location's two stores with a version and an object in them; the database is closed again."""
    blob, consensus = FileBlob(root / "blob"), SQLiteConsensus(root / "consensus.db")
    asyncio.run(blob.set("s/part", b"rows"))
    asyncio.run(consensus.compare_and_set(step("k", None)))
    consensus.close()
    return blob, consensus


def test_a_full_disk_is_named_with_its_reason_and_its_place(disk):
    """Damage: the operator reads `disk I/O error`, and looks for a broken disk."""
    blob, consensus = stored(disk)
    filler = fill(disk)
    with pytest.raises(Determinate, match=f"{REASON}.*{disk}"):
        asyncio.run(blob.set("s/other", bytes(100_000)))
    for call in (lambda: asyncio.run(consensus.head("k")), lambda: SQLiteConsensus(disk / "consensus.db")):
        with pytest.raises(StoreError, match=f"{disk}/consensus.db did not answer: {REASON} in {disk}: "):
            call()
    filler.unlink()
    assert asyncio.run(consensus.compare_and_set(step("j", None))) == Committed()
    asyncio.run(blob.set("s/other", bytes(100_000)))


def free(filler, pages):
    """Give back so many pages of a file that fills the disk."""
    os.truncate(filler, filler.stat().st_size - pages * CHUNK_BYTES)


def tried(consensus, request):
    """Commit; return what comes of it."""
    try:
        return asyncio.run(consensus.compare_and_set(request))
    except StoreError as error:
        return error


def recovered(root, into):
    """What a process finds that opens a copy of the database and its log after a crash."""
    into.mkdir()
    for name in ("consensus.db", "consensus.db-wal"):
        if (root / name).exists():
            shutil.copy(root / name, into / name)
    found = SQLiteConsensus(into / "consensus.db", existing=True)
    try:
        return asyncio.run(found.head("k"))
    finally:
        found.close()


def test_a_commit_that_finds_no_space_did_not_happen_wherever_the_space_ends(disk, tmp_path):
    """Damage: writers wait for what can never come; or what was said not to have happened is there after a crash."""
    stored(disk)
    consensus = SQLiteConsensus(disk / "consensus.db")
    said, head = set(), 0
    for pages in range(PAGES):
        asyncio.run(consensus.head("k"))  # it is open, and so is its log
        filler = fill(disk)
        free(filler, pages)
        outcome = tried(consensus, step("k", head, bytes([pages]) * 5 * CHUNK_BYTES))
        said.add(type(outcome))
        head += outcome == Committed()
        assert outcome == Committed() or f"{REASON} in {disk}" in str(outcome)
        now = asyncio.run(consensus.head("k"))
        assert now.seqno == head
        assert recovered(disk, tmp_path / f"after {pages}") == now
        filler.unlink()
    assert said == {Determinate, Committed}
    assert asyncio.run(consensus.compare_and_set(step("k", head, b"room"))) == Committed()
    consensus.close()


def test_a_database_that_a_full_disk_kept_closed_can_be_read(disk):
    """Damage: `strandline status` fails just when the operator needs it."""
    stored(disk)
    fill(disk)
    with pytest.raises(StoreError):
        SQLiteConsensus(disk / "consensus.db", existing=True)  # it leaves an empty log behind
    assert asyncio.run(SQLiteReader(disk / "consensus.db").head("k")) is not None
    assert asyncio.run(FileBlob(disk / "blob", existing=True).get("s/part")) == b"rows"


@pytest.mark.parametrize(
    ("call", "after", "error"),
    [
        ("write", 0, Determinate),
        ("fsync", 0, Determinate),
        ("replace", 0, Determinate),
        ("mkdir", 0, Determinate),
        ("fsync", 1, Indeterminate),  # its name is there, and may be gone after a crash
    ],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_for_which_there_is_no_space_says_so(tmp_path, monkeypatch, call, after, error, number):
    """Damage: the error does not name the file or the reason, or says that an object may be there which is not."""
    blob = FileBlob(tmp_path / "blob")
    asyncio.run(blob.set("s/part", b"rows"))

    calls, real = itertools.count(), getattr(os, call)

    def refuse(*given, **named):
        if next(calls) < after:
            return real(*given, **named)
        raise OSError(number, os.strerror(number))

    class Full:
        """A file that takes nothing."""

        def __init__(self, descriptor, _):
            self.descriptor = descriptor
            self.write = refuse

        def __enter__(self):
            return self

        def __exit__(self, *_):
            os.close(self.descriptor)

    if call == "write":
        monkeypatch.setattr(file_store, "open", Full, raising=False)
    else:
        monkeypatch.setattr(os, call, refuse)
    with pytest.raises(error, match=f"{os.strerror(number)}: {tmp_path}/blob/t/other"):
        asyncio.run(blob.set("t/other", b"rows"))
    monkeypatch.undo()
    assert asyncio.run(blob.get("s/part")) == b"rows"
    assert [path for path in (tmp_path / "blob").rglob("*~*") if path.is_file()] == [], "what is left takes space"
    if error is Determinate:
        assert asyncio.run(blob.get("t/other")) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_delete_for_which_there_is_no_space_did_not_happen(tmp_path, monkeypatch, number):
    """Damage: a file system that writes a copy of what it changes is full, and a collector believes the object gone."""
    blob = FileBlob(tmp_path / "blob")
    asyncio.run(blob.set("s/part", b"rows"))

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(Determinate, match=f"was not deleted: {os.strerror(number)}: {tmp_path}/blob/s/part"):
        asyncio.run(blob.delete("s/part"))
    monkeypatch.undo()
    assert asyncio.run(blob.delete("s/part")) is True


@pytest.mark.parametrize(
    ("code", "quota", "error"),
    [
        (sqlite3.SQLITE_FULL, False, Determinate),
        (sqlite3.SQLITE_IOERR_WRITE, True, Determinate),
        (sqlite3.SQLITE_IOERR_WRITE, False, Indeterminate),
        (sqlite3.SQLITE_IOERR_FSYNC, True, Indeterminate),
    ],
    ids=["full", "quota", "a broken disk", "a flush"],
)
def test_a_commit_did_not_happen_only_if_a_write_found_no_space(tmp_path, monkeypatch, code, quota, error):
    """Damage: SQLite does not tell a used-up quota from a broken disk; and a flush that fails may have written all."""
    consensus = SQLiteConsensus(tmp_path / "consensus.db")
    asyncio.run(consensus.compare_and_set(step("k", None)))
    real = consensus._connected()

    class Refusing:
        """A connection that does not commit."""

        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, statement, values=()):
            if statement == "COMMIT":
                refused = sqlite3.OperationalError("refused")
                refused.sqlite_errorcode, refused.sqlite_errorname = code, "CODE"
                raise refused
            return real.execute(statement, values)

    def refuse(*_):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    refusing = consensus._connection = Refusing()
    if quota:
        monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(error, match="nothing was stored" if error is Determinate else "a commit may have failed"):
        asyncio.run(consensus.compare_and_set(step("k", 0)))
    monkeypatch.undo()
    if consensus._connection is refusing:
        consensus._connection = real
    assert asyncio.run(consensus.head("k")).seqno == 0
    assert asyncio.run(consensus.compare_and_set(step("k", 0))) == Committed()


def test_an_io_error_of_a_full_disk_is_reported_as_a_full_disk(tmp_path, monkeypatch):
    """Damage: as above, where no small file system can be mounted."""
    consensus = SQLiteConsensus(tmp_path / "consensus.db")
    asyncio.run(consensus.compare_and_set(step("k", None)))
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorcode, broken.sqlite_errorname = sqlite3.SQLITE_IOERR | 19 << 8, "SQLITE_IOERR_SHMSIZE"
    monkeypatch.setattr(sqlite, "no_space", lambda path: REASON)
    said = str(sqlite.nothing_happened(tmp_path / "consensus.db", broken))
    assert said == (
        f"{tmp_path}/consensus.db did not answer: {REASON} in {tmp_path}: disk I/O error (SQLITE_IOERR_SHMSIZE)"
    )
    monkeypatch.undo()
    assert REASON not in str(sqlite.nothing_happened(tmp_path / "consensus.db", broken)), "there is space"
