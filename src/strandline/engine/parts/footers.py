"""Footers: what a Parquet part says of itself, and whether it is the part that was appended.

A part's reference (`BlobPart`) holds what no page CRC covers: the object's size, the CRC32C of its footer (Thrift
metadata, its length, the magic) and its row count.  How bytes are fetched is the caller's: ``read(start, length)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import CorruptionError
from strandline.persist.shard.batch import BlobPart, KeyRange

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
