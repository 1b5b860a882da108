"""The part store: Parquet parts below one root, written once, checked whenever they are opened.

Pages are covered by Parquet's own CRCs, and the footer by the part's reference (`BlobPart`), which holds the object's
size, the CRC32C of the footer (Thrift metadata, its length, the magic) and the row count.  On file locations every
byte is also covered by a ``.crc`` sidecar like Hadoop's (`sidecar`), which is kept beside the part and named in the
reference.

`PartStore` is for file locations.  Executors write below the same path that the driver reads: on one machine that is
its disk, on a cluster it must be a file system that all of them share.  Memory and handles are not shared.  `tables`
reads parts in this process, without Spark.

Durability: a directory of parts is described only after each file, then each directory up to the root, is fsynced; so
a part that an append may name survives a power cut.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.engine.frames import inline
from strandline.errors import CorruptionError, Determinate
from strandline.persist.handles.contents import Contents, Half
from strandline.persist.shard.batch import BlobPart, InlinePart, KeyRange, Part

Read: TypeAlias = Callable[[int, int], bytes]

_MAGIC: Final = b"PAR1"
BOUND_MAX: Final = 64
"""How many characters of a bound are kept: a state names every part's."""
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
    ``metadata`` is the rest of what the footer says.
    """

    part: BlobPart
    times: Range
    diffs: Range
    errors: int | None
    metadata: pq.FileMetaData

    def sorted_by(self, sort: Sequence[str]) -> BlobPart:
        """Return the part, whose rows ascend by the columns ``sort``, with the bounds of the first of them."""
        return replace(self.part, keys=_keys(self.metadata, sort[0])) if sort else self.part


def describe(key: str, size: int, read: Read, sidecar: str) -> Described | None:
    """Return what a part that was just written says of itself; None if it has no rows."""
    footer = _footer(size, read)
    if footer is None:
        raise CorruptionError(f"part {key} was just written and is not a Parquet file")
    metadata = _metadata(footer)
    if metadata.num_rows == 0:
        return None
    return _described(BlobPart(key, size, metadata.num_rows, google_crc32c.value(footer), sidecar), metadata)


def check(part: BlobPart, size: int | None, read: Read) -> Described:
    """Return what the part's footer says, once it is known to be the part that was appended.

    ``size`` is that of the object that is there, None if there is none.

    The caller fetches the bytes: ``read(start, length)``.

    Raises:
        CorruptionError: it is missing, or not as it was appended; the message names it and what was expected.
    """
    if size is None:
        raise CorruptionError(f"part {part.key} is missing; a part of {part.size} bytes was expected")
    if size != part.size:
        raise CorruptionError(f"part {part.key} has {size} bytes; {part.size} were expected")
    footer = _footer(size, read)
    if footer is None or google_crc32c.value(footer) != part.footer_crc:
        raise CorruptionError(f"part {part.key}: its footer is damaged; CRC32C {part.footer_crc:08x} was expected")
    metadata = _metadata(footer)
    if metadata.num_rows != part.rows:
        raise CorruptionError(f"part {part.key} has {metadata.num_rows} rows; {part.rows} were expected")
    return _described(part, metadata)


def opened(part: BlobPart, data: bytes) -> pq.ParquetFile:
    """Return the bytes of a part as a file whose pages are checked when they are read.

    Raises `CorruptionError` unless it is the part that was appended; reading a damaged page raises Arrow's own errors.
    """
    check(part, len(data), lambda start, length: data[start : start + length])
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)


def load(part: BlobPart, data: bytes) -> pa.Table:
    """Return the rows in the bytes of a part.  Raises `CorruptionError` for a damaged page."""
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"part {part.key} cannot be read: {error}") from error
    if table.num_rows != part.rows:
        raise CorruptionError(f"part {part.key} has {table.num_rows} rows; {part.rows} were expected")
    return table


def _footer(size: int, read: Read) -> bytes | None:
    """Return the object's bytes from the footer on, or None if it cannot be a Parquet file."""
    if size < len(_MAGIC) + _TRAILER:
        return None
    guess = min(size, _TAIL_GUESS)
    tail = read(size - guess, guess)
    if tail[-len(_MAGIC) :] != _MAGIC:
        return None
    length = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
    if length > size - len(_MAGIC):
        return None
    return tail[-length:] if length <= guess else read(size - length, length)


def _metadata(footer: bytes) -> pq.FileMetaData:
    """Parse the metadata; the reader wants a file, and the shortest file with this footer is magic and footer."""
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer))


def _described(part: BlobPart, metadata: pq.FileMetaData) -> Described:
    times, diffs = (_range(metadata, column, part.key) for column in (TIME, DIFF))
    return Described(part, times, diffs, _errors(metadata), metadata)


def _keys(metadata: pq.FileMetaData, column: str) -> KeyRange | None:
    """Return a column's bounds; None if there are none, or none whose order is that of numbers or texts."""
    at = {metadata.schema.column(n).path.lower(): n for n in range(metadata.num_columns)}.get(column.lower())
    if at is None or metadata.schema.column(at).max_repetition_level:
        return None
    found = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
    known = [each for each in found if each is not None and each.has_min_max and _ordered(each)]
    if len(known) < len(found):
        return None
    nulls = any(not each.has_null_count or each.null_count for each in known)
    least, greatest = min(each.min_raw for each in known), max(each.max_raw for each in known)
    if isinstance(greatest, int):
        return KeyRange(None if nulls else least, greatest)
    lower, upper = least.decode(), greatest.decode()
    # A bound that is cut off is still a bound below, and none above.
    return KeyRange(None if nulls else lower[:BOUND_MAX], upper if len(upper) <= BOUND_MAX else None)


def _ordered(statistics: pq.Statistics) -> bool:
    if statistics.physical_type in {"INT32", "INT64"}:
        return True
    return bool(statistics.physical_type == "BYTE_ARRAY" and statistics.logical_type.type == "STRING")


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


_SIDECAR_MAGIC: Final = b"crc\0"
_CHUNK_BYTES: Final = 512
_HEAD: Final = struct.Struct(">4sI")


def sidecar(data: bytes) -> bytes:
    """Return the sidecar of a file that holds ``data``.

    It has a CRC-32 for every 512 bytes.  Hadoop writes one for each file on a local path, and compares it whenever it
    reads the file.  What this process writes gets one too, so that every byte of every part is covered: page headers
    and indexes as well, which Parquet's own checksums leave out.

    Source: Apache Hadoop, `ChecksumFileSystem` (``.NAME.crc``: "crc", a zero, the chunk's length, the sums;
    big-endian).

    >>> sidecar(b"strandline").hex(" ")
    '63 72 63 00 00 00 02 00 3e 13 c1 c5'
    """
    return _HEAD.pack(_SIDECAR_MAGIC, _CHUNK_BYTES) + _sums(data, _CHUNK_BYTES)


def mismatch(data: bytes, stored: bytes) -> str | None:
    """Return what speaks against ``stored`` being the sidecar of ``data``, or None if it is."""
    if len(stored) < _HEAD.size:
        return "its sidecar is cut off"
    magic, chunk = _HEAD.unpack_from(stored)
    if magic != _SIDECAR_MAGIC or not chunk:
        return "its sidecar is none"
    expected, found = stored[_HEAD.size :], _sums(data, chunk)
    if found == expected:
        return None
    if len(found) != len(expected):
        return f"its sidecar has {len(expected) // 4} checksums; {len(found) // 4} were expected"
    at = next(at for at in range(0, len(found), 4) if found[at : at + 4] != expected[at : at + 4]) // 4 * chunk
    return f"the bytes from {at} on are not those of which its sidecar has the checksum"


def _sums(data: bytes, chunk: int) -> bytes:
    view = memoryview(data)
    sums = [zlib.crc32(view[at : at + chunk]) for at in range(0, len(data), chunk)]
    return struct.pack(f">{len(sums)}I", *sums)


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
        """Return a part to be read in pieces, as `opened` says; `CorruptionError` if it is not there."""
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
            return check(part, path.stat().st_size, partial(_read, path))
        except FileNotFoundError:
            return check(part, None, partial(_read, path))

    def check_all(self, parts: Sequence[BlobPart]) -> list[Described]:
        """Check each: one after the other, since a local read is shorter than a thread's start."""
        return [self.check(part) for part in parts]

    def load(self, part: BlobPart) -> pa.Table:
        """Return all of a part that was checked; `CorruptionError` for a damaged byte, wherever it is."""
        data = self._path(part.key).read_bytes()
        self._check_sidecar(part, data)
        return load(part, data)

    def open(self, part: BlobPart) -> pq.ParquetFile:
        """Return a part to be read in pieces; `CorruptionError` if it is missing or a byte of it is damaged."""
        try:
            data = self._path(part.key).read_bytes()
        except FileNotFoundError:
            raise CorruptionError(f"part {part.key} is missing; a part of {part.size} bytes was expected") from None
        self._check_sidecar(part, data)
        return opened(part, data)

    def write(self, key: str, data: bytes) -> Described:
        """Store a Parquet file as ``key``, durably, and describe it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        _sidecar(path).write_bytes(sidecar(data))
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
        wrong = mismatch(data, stored)
        if wrong is not None:
            raise CorruptionError(f"part {part.key}: {wrong}")

    def _path(self, key: str) -> Path:
        return self.root / key

    def _describe(self, key: str, path: Path) -> Described | None:
        sidecar = f"{key.rpartition('/')[0]}/{_sidecar(path).name}" if _sidecar(path).exists() else ""
        return describe(key, path.stat().st_size, partial(_read, path), sidecar)

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


def tables(store: Parts, contents: Contents) -> Iterator[pa.Table]:
    """Yield the updates of ``contents``, part by part, read and checked here; first none, for the columns."""
    target = inline.update_schema(contents.schema)
    yield inline.select(target.empty_table(), half=contents.half, lower=0, upper=0, advance=0)
    for part in (part for batch in contents.batches for part in batch.parts):
        shown = contents.through(part.window)
        if shown is not None:
            stored = _stored(store, contents, part, target)
            yield inline.select(stored, half=shown.half, lower=shown.lower, upper=shown.upper, advance=shown.advance)


def verified(store: Parts, contents: Contents) -> int:
    """See `Merger.verify`."""
    return sum(pc.sum(table[DIFF]).as_py() or 0 for table in tables(store, replace(contents, half=Half.BOTH)))


def _stored(store: Parts, contents: Contents, part: Part, target: pa.Schema) -> pa.Table:
    if isinstance(part, InlinePart):
        return inline.decode(contents.shard, part, contents.schema)
    return _loaded(store, part, target)


def _loaded(store: Parts, part: BlobPart, target: pa.Schema) -> pa.Table:
    store.check(part)
    table = inline.conform(store.load(part), target)
    if table[TIME].null_count or table[DIFF].null_count:
        raise CorruptionError(f"part {part.key} holds updates without a time or a diff")
    return table
