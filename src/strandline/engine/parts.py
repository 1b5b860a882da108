"""The part store: Parquet parts below one root, written once, checked whenever they are opened.

A part's reference (`BlobPart`) holds what no page CRC covers: the object's size, the CRC32C of its footer (Thrift
metadata, its length, the magic) and its row count.  Pages are covered by Parquet's own CRCs, and on file locations
every byte also by Hadoop's ``.crc`` sidecar, which is kept beside the part and named in the reference.

This store is for file locations.  Executors write below the same path that the driver reads: on one machine that is its
disk, on a cluster it must be a file system that all of them share.  Nothing else is shared: not memory, not handles.

Durability: a directory of parts is described only after each file, then each directory up to the root, is fsynced; so a
part that an append may name survives a power cut.

Source: design page "persist" (everything at rest is checked; parts that Spark writes to a local path are fsynced
first).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import CorruptionError
from strandline.persist.batch import BlobPart

_MAGIC: Final = b"PAR1"
_TRAILER: Final = 8
"""A Parquet file ends in the footer's length (4 bytes, little-endian) and the magic."""
_TAIL_GUESS: Final = 64 << 10
"""Most footers fit in this, so that one read fetches length and footer together."""
assert _TAIL_GUESS > _TRAILER


@dataclass(frozen=True, slots=True)
class Range:
    """Least and greatest value of a column that is never NULL."""

    least: int
    greatest: int

    def __or__(self, other: Range) -> Range:
        return Range(min(self.least, other.least), max(self.greatest, other.greatest))


@dataclass(frozen=True, slots=True)
class Described:
    """A part as its footer describes it.

    ``times`` and ``diffs`` are ranges; ``errors`` counts the rows of the err half, None if the writer left no count.
    """

    part: BlobPart
    times: Range
    diffs: Range
    errors: int | None


@dataclass(frozen=True, slots=True)
class PartStore:
    """Parts by key below ``root`` (the same directory and the same keys as the location's Blob)."""

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
            size = path.stat().st_size
            footer = _footer(path, size)
        except FileNotFoundError as error:
            raise CorruptionError(f"part {part.key} is missing; a part of {part.size} bytes was expected") from error
        if size != part.size:
            raise CorruptionError(f"part {part.key} has {size} bytes; {part.size} were expected")
        if footer is None or google_crc32c.value(footer) != part.footer_crc:
            raise CorruptionError(f"part {part.key}: its footer is damaged; CRC32C {part.footer_crc:08x} was expected")
        metadata = _metadata(footer)
        if metadata.num_rows != part.rows:
            raise CorruptionError(f"part {part.key} has {metadata.num_rows} rows; {part.rows} were expected")
        return _described(part, metadata)

    def write(self, key: str, data: bytes) -> Described:
        """Store a Parquet file as ``key``, durably, and describe it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        _fsync(path)
        self._fsync_directories(path.parent)
        described = self._describe(key, path)
        assert described is not None, "a part without rows is never written"
        return described

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

    def _path(self, key: str) -> Path:
        return self.root / key

    def _describe(self, key: str, path: Path) -> Described | None:
        size = path.stat().st_size
        footer = _footer(path, size)
        if footer is None:
            raise CorruptionError(f"part {key} was just written and is not a Parquet file")
        metadata = _metadata(footer)
        if metadata.num_rows == 0:
            return None
        sidecar = f"{key.rpartition('/')[0]}/{_sidecar(path).name}" if _sidecar(path).exists() else ""
        part = BlobPart(key, size, metadata.num_rows, google_crc32c.value(footer), sidecar)
        return _described(part, metadata)

    def _fsync_directories(self, directory: Path) -> None:
        """From the new directory up to the root: a name is durable when the directory that holds it is."""
        while directory != self.root and self.root in directory.parents:
            _fsync(directory)
            directory = directory.parent
        _fsync(self.root)


def _footer(path: Path, size: int) -> bytes | None:
    """Return the file's bytes from the footer on, or None if it cannot be a Parquet file."""
    if size < len(_MAGIC) + _TRAILER:
        return None
    with path.open("rb") as file:
        guess = min(size, _TAIL_GUESS)
        tail = os.pread(file.fileno(), guess, size - guess)
        if tail[-len(_MAGIC) :] != _MAGIC:
            return None
        length = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
        if length > size - len(_MAGIC):
            return None
        return tail[-length:] if length <= guess else os.pread(file.fileno(), length, size - length)


def _metadata(footer: bytes) -> pq.FileMetaData:
    """Parse the metadata; the reader wants a file, and the shortest file with this footer is magic and footer."""
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer))


def _described(part: BlobPart, metadata: pq.FileMetaData) -> Described:
    return Described(part, _range(metadata, TIME, part.key), _range(metadata, DIFF, part.key), _errors(metadata))


def _statistics(metadata: pq.FileMetaData, column: str) -> list[pq.Statistics | None]:
    """Return a column's statistics by row group; none at all if the file lacks the column."""
    at = metadata.schema.names.index(column) if column in metadata.schema.names else None
    groups = range(metadata.num_row_groups)
    return [] if at is None else [metadata.row_group(group).column(at).statistics for group in groups]


def _range(metadata: pq.FileMetaData, column: str, key: str) -> Range:
    """Return a column's range from the statistics of all row groups: exact for integers, in every writer we use."""
    ranges = []
    for statistics in _statistics(metadata, column):
        if statistics is None or not statistics.has_min_max or statistics.null_count:
            raise CorruptionError(f"part {key}: its footer has no range of {column}, or that column has NULLs")
        ranges.append(Range(statistics.min, statistics.max))
    if not ranges:
        raise CorruptionError(f"part {key} has no column {column}")
    return reduce(or_, ranges)


def _errors(metadata: pq.FileMetaData) -> int | None:
    """Return how many rows have an error; a part without that column has none."""
    nulls = [s.null_count if s is not None and s.has_null_count else None for s in _statistics(metadata, ERROR)]
    if not nulls:
        return 0
    known = [count for count in nulls if count is not None]
    return metadata.num_rows - sum(known) if len(known) == len(nulls) else None


def _sidecar(path: Path) -> Path:
    """Where Hadoop's checksummed file system keeps the checksums of ``path``."""
    return path.with_name(f".{path.name}.crc")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
