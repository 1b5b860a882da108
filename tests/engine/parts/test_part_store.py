"""`PartStore`: parts are durable before they are named, and are what they were whenever they are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.engine.frames import inline
from strandline.engine.parts.part_store import PartStore, Range
from strandline.errors import CorruptionError
from strandline.persist.shard.batch import BlobPart


def updates(rows: int, **more: pa.Array) -> bytes:
    """Return a part of that many insertions at times 5, 6, …"""
    columns = {"k": pa.array(range(rows), pa.int32())} | more
    times = {TIME: pa.array(range(5, 5 + rows), pa.int64()), DIFF: pa.array([1] * rows, pa.int64())}
    return inline.parquet(pa.table(columns | times))


def test_a_part_is_described_by_its_footer(tmp_path: Path) -> None:
    """Damage: a batch claims times, signs or errors that its rows do not have."""
    store = PartStore(tmp_path)
    described = store.write("s/1/part-a.parquet", updates(3, **{ERROR: pa.array([None, "x", None], pa.string())}))
    assert (described.part.rows, described.times, described.diffs, described.errors) == (3, Range(5, 7), Range(1, 1), 1)
    assert described.part.size == (tmp_path / described.part.key).stat().st_size
    assert store.write("s/2/part-a.parquet", updates(3)).errors == 0
    assert store.check(described.part) == described


def test_a_written_directory_is_described_without_its_leftovers(tmp_path: Path) -> None:
    """Damage: an empty file or Spark's marker is named as a part, or a sidecar leaks."""
    store = PartStore(tmp_path)
    directory = tmp_path / "s" / "1"
    directory.mkdir(parents=True)
    (directory / "part-0.parquet").write_bytes(updates(0))
    (directory / ".part-0.parquet.crc").write_bytes(b"crc")
    (directory / "part-1.parquet").write_bytes(updates(2))
    (directory / ".part-1.parquet.crc").write_bytes(b"crc")
    (directory / "_SUCCESS").write_bytes(b"")
    found = store.describe("s/1/")
    assert [(d.part.key, d.part.rows, d.part.sidecar) for d in found] == [
        ("s/1/part-1.parquet", 2, "s/1/.part-1.parquet.crc")
    ]
    assert not (directory / "part-0.parquet").exists()
    assert not (directory / ".part-0.parquet.crc").exists()


def test_files_are_fsynced_before_their_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a power cut leaves an append that names a file which is not there."""
    synced: list[str] = []
    real = os.fsync

    def record(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", record)
    PartStore(tmp_path).write("s/1/part-a.parquet", updates(1))
    files = {str(tmp_path / "s/1/part-a.parquet"), str(tmp_path / "s/1/.part-a.parquet.crc")}
    directories = [str(tmp_path / "s/1"), str(tmp_path / "s"), str(tmp_path)]
    assert (set(synced[:2]), synced[2:]) == (files, directories)
    synced.clear()
    PartStore(tmp_path).describe("s/1")
    assert (set(synced[:2]), synced[2:]) == (files, directories)


def test_every_flipped_byte_of_the_footer_is_refused(tmp_path: Path) -> None:
    """Damage: no page checksum covers the footer; two of a hundred flips there gave wrong rows."""
    store = PartStore(tmp_path)
    part = store.write("s/1/part-a.parquet", updates(50)).part
    path = tmp_path / part.key
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for at in range(len(whole) - footer, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=part.key):
            store.check(part)
    path.write_bytes(whole)
    store.check(part)


@pytest.mark.parametrize("length", [0, 3, 11, 12, 200])
def test_a_torn_file_is_refused(tmp_path: Path, length: int) -> None:
    """Damage: a torn write reads as fewer rows."""
    store = PartStore(tmp_path)
    part = store.write("s/1/part-a.parquet", updates(50)).part
    path = tmp_path / part.key
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptionError, match=part.key):
        store.check(part)


def test_another_part_under_the_same_key_is_refused(tmp_path: Path) -> None:
    """Damage: a misdirected restore gives another batch's rows."""
    store = PartStore(tmp_path)
    part = store.write("s/1/part-a.parquet", updates(50)).part
    other = store.write("s/2/part-a.parquet", updates(51)).part
    (tmp_path / part.key).write_bytes((tmp_path / other.key).read_bytes())
    with pytest.raises(CorruptionError, match=part.key):
        store.check(part)


def test_a_missing_part_is_refused_and_deleting_it_again_is_fine(tmp_path: Path) -> None:
    """Damage: a collected part reads as empty, or collecting it twice is an error."""
    store = PartStore(tmp_path)
    part = store.write("s/1/part-a.parquet", updates(1)).part
    store.delete(part)
    assert not (tmp_path / "s/1").exists()
    store.delete(part)
    store.delete_prefix("s/1")
    with pytest.raises(CorruptionError, match="missing"):
        store.check(part)
    with pytest.raises(CorruptionError, match="missing"):
        store.check(BlobPart("s/never", 10, 1, 0, ""))


def test_every_flipped_byte_is_refused_when_all_is_loaded(tmp_path: Path) -> None:
    """Damage: compaction rewrites a damaged page as if it were rows."""
    store = PartStore(tmp_path)
    part = store.write("s/1/part-a.parquet", updates(50)).part
    path = tmp_path / part.key
    whole = path.read_bytes()
    table = store.load(part)
    assert table.num_rows == 50
    assert store.check_all([part, part]) == [store.check(part)] * 2
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=f"{part.key}: the bytes from {at // 512 * 512} on"):
            store.load(part)
    path.write_bytes(whole)
    (tmp_path / part.sidecar).unlink()
    with pytest.raises(CorruptionError, match=f"{part.key}: its sidecar .* is missing"):
        store.load(part)


def test_without_a_sidecar_what_is_loaded_is_what_was_written_or_is_refused(tmp_path: Path) -> None:
    """Damage: the same in an object store, where no sidecar is."""
    store = PartStore(tmp_path)
    part = replace(store.write("s/1/part-a.parquet", updates(50)).part, sidecar="")
    path = tmp_path / part.key
    whole, table = path.read_bytes(), store.load(part)
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    refused: list[str] = []
    for at in range(len(whole) - footer):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        try:
            assert store.load(part) == table
        except CorruptionError as error:
            refused.append(str(error))
    assert refused
    assert all(part.key in words for words in refused)
