"""The file store keeps the contract, and makes things durable in the right order."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from strandline.errors import ConfigError, Determinate, Indeterminate, InvalidUsage
from strandline.store.blob_kinds.file import LEFTOVER_GRACE_MS, FileBlob
from strandline.testing.contracts.blob_contract import BlobContract, OpenBlob


class TestFileBlob(BlobContract):
    @pytest.fixture
    def open_blob(self, tmp_path: Path) -> OpenBlob:
        return partial(FileBlob, tmp_path / "location" / "blob")


class TestFileBlobWithoutFsync(BlobContract):
    @pytest.fixture
    def open_blob(self, tmp_path: Path) -> OpenBlob:
        return partial(FileBlob, tmp_path, fsync=False)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the file system, in order, with paths relative to ``tmp_path``."""
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def relative(path: object) -> str:
        return Path(str(path)).relative_to(tmp_path).as_posix()

    def fsync(descriptor: int) -> None:
        calls.append(f"fsync {relative(Path(f'/proc/self/fd/{descriptor}').readlink())}")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        calls.append(f"rename {relative(source)} -> {relative(target)}")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return calls


def test_a_new_root_is_durable_up_to_the_directory_that_was_there(tmp_path: Path, calls: list[str]) -> None:
    """Damage: after a power cut the whole location is gone, acknowledged data and all."""
    FileBlob(tmp_path / "a" / "b")
    assert calls == ["fsync a", "fsync ."]
    FileBlob(tmp_path / "a" / "b")
    assert calls == ["fsync a", "fsync ."]


def test_a_set_syncs_the_file_then_renames_it_then_syncs_every_directory_above(
    tmp_path: Path, calls: list[str]
) -> None:
    """Damage: after a power cut a committed state names an object that is empty, torn or absent."""
    blob = FileBlob(tmp_path)
    order = ["fsync p/s/k~0", "rename p/s/k~0 -> p/s/k", "fsync p/s", "fsync p", "fsync ."]
    asyncio.run(blob.set("p/s/k", b"data"))
    assert calls == order
    calls.clear()
    asyncio.run(blob.set("p/s/k", b"data"))
    assert calls == order, "directories that were there may be another process's, made and not yet synced"


def test_a_delete_syncs_the_directory(tmp_path: Path, calls: list[str]) -> None:
    """Damage: a collected object comes back after its key was forgotten, and leaks for ever."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("p/k", b"data"))
    calls.clear()
    asyncio.run(blob.delete("p/k"))
    assert calls == ["fsync p"]


def test_without_fsync_nothing_is_synced_and_still_renamed(tmp_path: Path, calls: list[str]) -> None:
    """Damage: a location in memory pays for a durability that it does not have, or loses atomicity with it."""
    blob = FileBlob(tmp_path, fsync=False)
    asyncio.run(blob.set("k", b"data"))
    asyncio.run(blob.delete("k"))
    assert calls == ["rename k~0 -> k"]


def fail_at(name: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the ``nth`` call (from 1) of ``os.<name>`` fail, as a disk does."""
    real, count = getattr(os, name), iter(range(1, 1000))

    def failing(*args: object, **kwargs: object) -> object:
        if next(count) == nth:
            raise OSError(errno.EIO, "planted")
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)


def test_a_failure_before_the_rename_is_determinate_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a full disk leaves garbage at every attempt, or a caller waits for an object that cannot come."""
    blob = FileBlob(tmp_path)
    fail_at("fsync", 1, monkeypatch)
    with pytest.raises(Determinate, match="'k'"):
        asyncio.run(blob.set("k", b"data"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "nth"), [("replace", 1), ("fsync", 2), ("fsync", 3)])
def test_a_failure_from_the_rename_on_is_indeterminate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    """Damage: a caller that gets "no" deletes or rewrites an object that a reader may have seen."""
    blob = FileBlob(tmp_path)
    fail_at(name, nth, monkeypatch)
    with pytest.raises(Indeterminate, match="'dir/k'"):
        asyncio.run(blob.set("dir/k", b"data"))


def test_a_failed_sync_of_a_delete_is_indeterminate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a collector forgets the key of an object that comes back after a power cut."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("t/a", b"data"))
    fail_at("fsync", 1, monkeypatch)
    with pytest.raises(Indeterminate, match="may come back"):
        asyncio.run(blob.delete("t/a"))


def test_a_file_that_a_crash_left_is_no_object_and_blocks_no_write(tmp_path: Path) -> None:
    """Damage: half an object is read as a whole one, or its key can never be written."""
    blob = FileBlob(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/k~0").write_bytes(b"ha")
    assert asyncio.run(blob.list("")) == []
    asyncio.run(blob.set("dir/k", b"half"))
    assert asyncio.run(blob.list("")) == ["dir/k"]
    assert asyncio.run(blob.get("dir/k")) == b"half"


def test_directories_that_a_delete_empties_are_removed(tmp_path: Path) -> None:
    """Damage: years of batches leave a directory each, and every listing walks them all."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("parts/b1/x", b""))
    asyncio.run(blob.set("parts/b2/x", b""))
    asyncio.run(blob.delete("parts/b1/x"))
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["b2"]


def test_sets_and_deletes_that_race_for_a_directory_both_succeed(tmp_path: Path) -> None:
    """Damage: an append fails because a collector removed an empty directory at the wrong moment."""

    async def churn(name: str) -> None:
        blob = FileBlob(tmp_path)
        for number in range(100):
            await blob.set(f"dir/{name}-{number}", b"data")
            assert await blob.get(f"dir/{name}-{number}") == b"data"
            assert await blob.delete(f"dir/{name}-{number}") is True

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: asyncio.run(churn(name)), "abcd"))
    assert asyncio.run(FileBlob(tmp_path).list("")) == []


def test_a_key_that_is_a_directory_or_lies_below_an_object_is_a_usage_error(tmp_path: Path) -> None:
    """Damage: a caller retries for ever a call that can never work."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("a/b", b"data"))
    with pytest.raises(InvalidUsage):
        asyncio.run(blob.set("a", b"data"))
    with pytest.raises(InvalidUsage):
        asyncio.run(blob.set("a/b/c", b"data"))
    assert asyncio.run(blob.list("")) == ["a/b"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_path_of_a_key_is_the_file_that_holds_it(tmp_path: Path) -> None:
    """Damage: Spark reads and writes beside the store, not in it."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("parts/b1/part-0.parquet", b"PAR1"))
    assert blob.path("parts/b1/part-0.parquet").read_bytes() == b"PAR1"
    with pytest.raises(InvalidUsage):
        blob.path("../outside")


def test_a_root_that_cannot_be_made_is_the_operators_move(tmp_path: Path) -> None:
    """Damage: a wrong path becomes a stack trace, or a store that loses data."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file"):
        FileBlob(tmp_path / "file")
    with pytest.raises(ConfigError, match="below"):
        FileBlob(tmp_path / "file" / "below")


def test_what_a_crashed_writer_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    """Damage: half-written parts fill the disk; or a writer at work loses its file."""
    blob = FileBlob(tmp_path)
    asyncio.run(blob.set("s/k", b"data"))
    now_ms = 2 * LEFTOVER_GRACE_MS
    for name, age_ms in {"s/k~0": LEFTOVER_GRACE_MS + 1000, "s/new~0": LEFTOVER_GRACE_MS - 1000}.items():
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, ns=(0, (now_ms - age_ms) * 1_000_000))
    os.utime(tmp_path / "s/k", ns=(0, 0))
    assert blob.sweep(now_ms) == 1
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["k", "new~0"]
    assert blob.sweep(now_ms) == 0
