"""Sidecars: Hadoop's files of checksums, a CRC-32 for every 512 bytes, beside what Spark writes to a local path.

Hadoop writes one for each file, and compares it whenever it reads the file.  What this process writes gets one too, so
that on file locations every byte of every part is covered: page headers and indexes as well, which Parquet's own
checksums leave out.

Source: Apache Hadoop, `ChecksumFileSystem` (``.NAME.crc``: "crc", a zero, the chunk's length, the sums; big-endian).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_MAGIC: Final = b"crc\0"
_CHUNK_BYTES: Final = 512
_HEAD: Final = struct.Struct(">4sI")


def sidecar(data: bytes) -> bytes:
    """Return the sidecar of a file that holds ``data``.

    >>> sidecar(b"strandline").hex(" ")
    '63 72 63 00 00 00 02 00 3e 13 c1 c5'
    """
    return _HEAD.pack(_MAGIC, _CHUNK_BYTES) + _sums(data, _CHUNK_BYTES)


def mismatch(data: bytes, stored: bytes) -> str | None:
    """Return what speaks against ``stored`` being the sidecar of ``data``, or None if it is."""
    if len(stored) < _HEAD.size:
        return "its sidecar is cut off"
    magic, chunk = _HEAD.unpack_from(stored)
    if magic != _MAGIC or not chunk:
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
