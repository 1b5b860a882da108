"""On a full disk nothing is lost, messages give the operating system's reason, and what is stored can be read."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3

import pytest

from small_disk import fill, mounted
from strandline.errors import Determinate, Indeterminate, StoreError
from strandline.store.blob_kinds import file as file_store
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.consensus import Committed
from strandline.store.consensus_kinds import sqlite
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.consensus_kinds.sqlite_reader import SQLiteReader
from strandline.testing.contracts.consensus_contract import step

REASON = "No space left on device"


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


def test_a_database_that_a_full_disk_kept_closed_can_be_read(disk):
    """Damage: `strandline status` fails just when the operator needs it."""
    stored(disk)
    fill(disk)
    with pytest.raises(StoreError):
        SQLiteConsensus(disk / "consensus.db", existing=True)  # it leaves an empty log behind
    assert asyncio.run(SQLiteReader(disk / "consensus.db").head("k")) is not None
    assert asyncio.run(FileBlob(disk / "blob", existing=True).get("s/part")) == b"rows"


@pytest.mark.parametrize(
    ("call", "error"), [("write", Determinate), ("replace", Indeterminate), ("fsync", Determinate)]
)
def test_a_write_for_which_there_is_no_space_says_so(tmp_path, monkeypatch, call, error):
    """Damage: the error does not name the file that could not be written, or the reason."""
    blob = FileBlob(tmp_path / "blob")
    asyncio.run(blob.set("s/part", b"rows"))

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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
    with pytest.raises(error, match=f"{REASON}: {tmp_path}/blob/s/other"):
        asyncio.run(blob.set("s/other", b"rows"))
    monkeypatch.undo()
    assert asyncio.run(blob.get("s/part")) == b"rows"


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
