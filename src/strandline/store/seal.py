"""Seals: stored bytes carry their identity, not just a checksum.

A sealed object is a header and a body.  The header holds a magic, the seal's format, the object's `Kind`, the length of
the body, a 64-bit hash of the key it is stored under, and a CRC32C over all of that and the body.  So `unseal` refuses
a flipped, missing or extra byte, another kind of object, and *another object's bytes* (a misdirected read or write).
Strandline seals everything that it writes itself; the Parquet parts that Spark writes carry their own checks.

``(kind, key, body)`` determine the header.  So `unseal` computes the expected header and compares; only if they differ
does it decode the stored one, for the message.

Warning: the seal detects accidents, not attacks: a process that can write an object can also seal it.
"""

from __future__ import annotations

import struct
from enum import IntEnum, unique
from hashlib import blake2b
from typing import Final

import google_crc32c

from strandline.errors import ConfigError, CorruptionError


@unique
class Kind(IntEnum):
    """What a sealed object is.  The numbers are stored: never change or reuse one."""

    DIFF = 1
    ROLLUP = 2
    RECORDS = 3
    REGISTER = 4
    CHECKPOINT = 5
    VERSION = 6
    CACHED = 7
    DOOMED = 8
    MARK = 9


MAGIC: Final = b"\x89STR"
FORMAT: Final = 1

_IDENTITY: Final = struct.Struct("<4sHHQ8s")  # magic, format, kind, body length in bytes, hash of the key
_CRC: Final = struct.Struct("<I")
SEAL_BYTES: Final = _IDENTITY.size + _CRC.size
assert SEAL_BYTES == 28, "the header's layout is stored: a change needs a new FORMAT"


def crc32c(data: bytes) -> int:
    """Return the CRC32C (Castagnoli) of ``data``.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(google_crc32c.value(data))


def seal(kind: Kind, key: str, body: bytes) -> bytes:
    """Return ``body`` sealed as a ``kind`` that will be stored under ``key``."""
    identity = _identity(kind, key, len(body))
    return b"".join((identity, _CRC.pack(_crc(identity, body)), body))


def unseal(kind: Kind, key: str, data: bytes) -> bytes:
    """Return the body that was sealed as ``kind`` under ``key``.

    >>> unseal(Kind.DIFF, "s/1", seal(Kind.DIFF, "s/1", b"body"))
    b'body'

    Raises:
        CorruptionError: ``data`` is not exactly what `seal` returned for this kind and key.
    """
    body = data[SEAL_BYTES:]
    identity = _identity(kind, key, len(body))
    if data[:SEAL_BYTES] != identity + _CRC.pack(_crc(identity, body)):
        raise CorruptionError(f"{kind.name.lower()} {key!r}: {_difference(kind, data)}")
    return body


def version_key(key: str, seqno: int) -> str:
    """Return what version ``seqno`` of a Consensus key is sealed under: it is refused as another version.

    >>> version_key("s", 7)
    's/7'
    """
    return f"{key}/{seqno}"


def refuse_future(what: str, written: int, known: int, needed: str = "a later strandline") -> None:
    """Raise `ConfigError` if ``what`` was written in a newer format than ``known``.

    This version would misread it, or write it back without the fields that the newer format added.
    """
    if written > known:
        raise ConfigError(f"{what} in format {written}, this version reads up to {known}: {needed} is needed")


def _identity(kind: Kind, key: str, length: int) -> bytes:
    return _IDENTITY.pack(MAGIC, FORMAT, kind, length, blake2b(key.encode(), digest_size=8).digest())


def _crc(identity: bytes, body: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(identity), body))


def _difference(kind: Kind, data: bytes) -> str:
    """Return what was expected and what was found, for bytes that are known to be damaged or misplaced."""
    if len(data) < SEAL_BYTES:
        return f"expected a seal of {SEAL_BYTES} bytes, found {len(data)} bytes in all"
    magic, form, stored_kind, length, _ = _IDENTITY.unpack_from(data)
    (stored_crc,) = _CRC.unpack_from(data, _IDENTITY.size)
    if magic != MAGIC:
        return f"expected a sealed object (magic {MAGIC!r}), found {magic!r}"
    if length != len(data) - SEAL_BYTES:
        return f"expected a body of {length} bytes, found {len(data) - SEAL_BYTES}"
    found_crc = _crc(data[: _IDENTITY.size], data[SEAL_BYTES:])
    if stored_crc != found_crc:
        return f"expected CRC32C {stored_crc:08x}, found {found_crc:08x}"
    # The checksum holds, so these bytes were sealed like this: only the identity can differ.
    if form != FORMAT:
        return f"expected seal format {FORMAT}, found {form}: another version of Strandline wrote it"
    if stored_kind != kind:
        named = Kind(stored_kind).name.lower() if stored_kind in Kind.__members__.values() else str(stored_kind)
        return f"expected kind {kind.name.lower()}, found {named}"
    return "expected the hash of this key, found another's: these are the bytes of another object"
