"""The part store: Parquet parts below one root, written once, checked whenever they are opened.

Pages are covered by Parquet's own CRCs, the footer by the part's reference (`strandline.engine.parts.footers`), and on
file locations every byte also by a ``.crc`` sidecar like Hadoop's (`strandline.engine.parts.sidecars`), which is kept
beside the part and named in the reference.

`PartStore` is for file locations.  Executors write below the same path that the driver reads: on one machine that is
its disk, on a cluster it must be a file system that all of them share.  Memory and handles are not shared.

Durability: a directory of parts is described only after each file, then each directory up to the root, is fsynced; so a
part that an append may name survives a power cut.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.engine.parts import footers, sidecars
from strandline.engine.parts.footers import Described
from strandline.errors import CorruptionError, Determinate
from strandline.persist.shard.batch import BlobPart


class Parts(Protocol):
    """Where parts are: below one root, by the same keys as the location's Blob.  Calls block."""

    def uri(self, key: str) -> str:
        """Return where Spark reads and writes ``key``."""
        ...

    def describe(self, prefix: str) -> list[Described]:
        """Make the parts below ``prefix`` durable and return them in key order; files without rows are removed."""
        ...

    def check(self, part: BlobPart) -> Described:
        """Return what the part's footer says; `CorruptionError` unless it is the part that was appended."""
        ...

    def check_all(self, parts: Sequence[BlobPart]) -> list[Described]:
        """Check each, side by side where that saves time."""
        ...

    def load(self, part: BlobPart) -> pa.Table:
        """Return all of a part that was checked; `CorruptionError` for a damaged page."""
        ...

    def open(self, part: BlobPart) -> pq.ParquetFile:
        """Return a part to be read in pieces, as `footers.opened` says; `CorruptionError` if it is not there."""
        ...

    def write(self, key: str, data: bytes) -> Described:
        """Store a Parquet file as ``key``, durably, and describe it."""
        ...

    def put_aside(self, key: str, data: bytes) -> None:
        """Store a file that no batch will ever name, and that need not survive a power cut.

        Raises `Determinate` if it is refused, `Unavailable` if the store does not answer.
        """
        ...

    def delete(self, part: BlobPart) -> None:
        """Remove a part.  Idempotent."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Remove whatever a failed job left below a prefix that nothing names.  Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class PartStore:
    """`Parts` in the directory ``root`` (that of the location's Blob)."""

    root: Path

    def uri(self, key: str) -> str:
        """Return where Spark reads and writes ``key``."""
        return self._path(key).as_uri()

    def describe(self, prefix: str) -> list[Described]:
        """Make the parts below ``prefix`` durable and return them in key order; files without rows are removed."""
        directory = self._path(prefix)
        found = []
        for path in sorted(directory.iterdir()):
            if path.name.startswith((".", "_")):
                continue
            described = self._describe(f"{prefix.rstrip('/')}/{path.name}", path)
            if described is None:
                path.unlink()
                _sidecar(path).unlink(missing_ok=True)
            else:
                found.append(described)
        for path in directory.iterdir():
            _fsync(path)
        self._fsync_directories(directory)
        return found

    def check(self, part: BlobPart) -> Described:
        """Return what the part's footer says, once it is known to be the part that was appended.

        Raises:
            CorruptionError: it is missing, or not as it was appended; the message names it and what was expected.
        """
        path = self._path(part.key)
        try:
            return footers.check(part, path.stat().st_size, partial(_read, path))
        except FileNotFoundError:
            return footers.check(part, None, partial(_read, path))

    def check_all(self, parts: Sequence[BlobPart]) -> list[Described]:
        """Check each: one after the other, since a local read is shorter than a thread's start."""
        return [self.check(part) for part in parts]

    def load(self, part: BlobPart) -> pa.Table:
        """Return all of a part that was checked; `CorruptionError` for a damaged byte, wherever it is."""
        data = self._path(part.key).read_bytes()
        self._check_sidecar(part, data)
        return footers.load(part, data)

    def open(self, part: BlobPart) -> pq.ParquetFile:
        """Return a part to be read in pieces; `CorruptionError` if it is missing or a byte of it is damaged."""
        try:
            data = self._path(part.key).read_bytes()
        except FileNotFoundError:
            raise CorruptionError(f"part {part.key} is missing; a part of {part.size} bytes was expected") from None
        self._check_sidecar(part, data)
        return footers.opened(part, data)

    def write(self, key: str, data: bytes) -> Described:
        """Store a Parquet file as ``key``, durably, and describe it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        _sidecar(path).write_bytes(sidecars.sidecar(data))
        for file in (path, _sidecar(path)):
            _fsync(file)
        self._fsync_directories(path.parent)
        described = self._describe(key, path)
        assert described is not None, "a part without rows is never written"
        return described

    def put_aside(self, key: str, data: bytes) -> None:
        """See `Parts.put_aside`."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise Determinate(f"rows cannot be put aside in {path.parent}: {error}") from error

    def delete(self, part: BlobPart) -> None:
        """Remove a part, its sidecar and its directory once that is empty.  Idempotent."""
        path = self._path(part.key)
        path.unlink(missing_ok=True)
        if part.sidecar:
            self._path(part.sidecar).unlink(missing_ok=True)
        if path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def delete_prefix(self, prefix: str) -> None:
        """Remove whatever a failed job left below a prefix that nothing names.  Idempotent."""
        shutil.rmtree(self._path(prefix), ignore_errors=True)

    def _check_sidecar(self, part: BlobPart, data: bytes) -> None:
        if not part.sidecar:
            return
        try:
            stored = self._path(part.sidecar).read_bytes()
        except FileNotFoundError:
            raise CorruptionError(f"part {part.key}: its sidecar {part.sidecar} is missing") from None
        wrong = sidecars.mismatch(data, stored)
        if wrong is not None:
            raise CorruptionError(f"part {part.key}: {wrong}")

    def _path(self, key: str) -> Path:
        return self.root / key

    def _describe(self, key: str, path: Path) -> Described | None:
        sidecar = f"{key.rpartition('/')[0]}/{_sidecar(path).name}" if _sidecar(path).exists() else ""
        return footers.describe(key, path.stat().st_size, partial(_read, path), sidecar)

    def _fsync_directories(self, directory: Path) -> None:
        """From the new directory up to the root: a name is durable when the directory that holds it is."""
        while directory != self.root and self.root in directory.parents:
            _fsync(directory)
            directory = directory.parent
        _fsync(self.root)


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), length, start)


def _sidecar(path: Path) -> Path:
    """Where Hadoop's checksummed file system keeps the checksums of ``path``."""
    return path.with_name(f".{path.name}.crc")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
