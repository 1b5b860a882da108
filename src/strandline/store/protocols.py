"""The two protocols of storage: Blob, bytes by key, and Consensus, versioned values by key.

Blob holds everything too large for Consensus.  Its keys are ``/``-separated paths of segments of ``[A-Za-z0-9._=-]``,
none of them ``.`` or ``..``: so a key can be a path below a directory, an object's name in any store, and part of a
URL, unchanged.  Every implementation refuses any other string, so that a key that works in memory also works on disk.
Keys are **never reused**: a key is written once, by one writer, and may be deleted once nothing durable names it.  The
caller seals what it stores (`strandline/store/seal.py`).

Consensus keeps for each key a sequence of versions ``(seqno, data)`` that changes by compare-and-set alone,
linearizable per key.  The first version of a key may have any seqno from 0 to `SEQNO_MAX`; every later one is exactly
its predecessor's plus one.  Truncation forgets old versions, never the head, so a writer that expects an old seqno is
refused for ever.

Contract suites: `strandline.testing.contracts.blob_contract`, `strandline.testing.contracts.consensus_contract`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from strandline.errors import InvalidUsage


class Blob(Protocol):
    """Durable bytes by key.  Every method may raise `Determinate` or `Indeterminate`."""

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        ...

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``: readers see all of it or nothing, and when this returns it survives a power cut."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted.  May be stale: it never proves that a key is absent."""
        ...


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object as it was read: its bytes, and a tag that identifies these bytes among all values of the key."""

    data: bytes
    tag: str


class ObjectStore(Blob, Protocol):
    """A Blob with conditional writes, which `ObjectConsensus` builds consensus on.

    Its conditional calls are linearizable per key.  They alone may write a key twice.
    """

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        ...

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        ...

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff the object under ``key`` has ``tag``; return whether it was stored."""
        ...


SEQNO_MAX: Final = 2**63 - 1
"""Every implementation holds seqnos of 63 bits."""


class Versioned(msgspec.Struct, frozen=True):
    """One version of a key."""

    seqno: int
    data: bytes


class Committed(msgspec.Struct, frozen=True):
    """The compare-and-set took effect."""


class Mismatch(msgspec.Struct, frozen=True):
    """The head was not at the expected seqno; nothing changed.  Fetch the head and decide anew."""


class CompareAndSet(msgspec.Struct, frozen=True):
    """A request: install ``new`` under ``key`` iff the head's seqno is ``expected`` (None: iff the key is fresh).

    >>> CompareAndSet("k", 3, Versioned(5, b""))
    Traceback (most recent call last):
        ...
    strandline.errors.InvalidUsage: key 'k': seqno 5 cannot follow 3; the next one is 4
    """

    key: str
    expected: int | None
    new: Versioned

    def __post_init__(self) -> None:
        if self.expected is None:
            if self.new.seqno < 0:
                raise InvalidUsage(f"key {self.key!r}: the first seqno is {self.new.seqno}; it must not be negative")
        elif self.new.seqno != self.expected + 1:
            raise InvalidUsage(
                f"key {self.key!r}: seqno {self.new.seqno} cannot follow {self.expected}; "
                f"the next one is {self.expected + 1}"
            )
        if self.new.seqno > SEQNO_MAX:
            raise InvalidUsage(f"key {self.key!r}: seqno {self.new.seqno} is beyond {SEQNO_MAX}")


def check_limit(key: str, limit: int) -> None:
    """Refuse a negative limit; all implementations share this check and its message."""
    if limit < 0:
        raise InvalidUsage(f"key {key!r}: cannot scan {limit} versions")


def check_truncation(key: str, seqno: int, head: int | None) -> None:
    """Refuse a truncation to ``seqno`` that would delete the head (seqno ``head``), or of a key without one."""
    if head is None:
        raise InvalidUsage(f"key {key!r} cannot be truncated: it was never set")
    if seqno > head:
        raise InvalidUsage(f"key {key!r} cannot be truncated to {seqno}: its head is {head}")


class Consensus(Protocol):
    """Versioned values by key, linearizable per key.

    Raises (every method): `Determinate` - it did not happen; `Indeterminate` - it may have happened or may still happen
    (look for your own witness in the head before you retry); `InvalidUsage` - the call itself is wrong.
    """

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        ...

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        ...

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone, in any order, *not* atomically, with one durable flush where possible."""
        ...

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending.  A negative limit is `InvalidUsage`."""
        ...

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many.  `InvalidUsage` if ``seqno`` is beyond the head."""
        ...

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted (for administration; may be slow)."""
        ...


KEY_CHARS_MAX: Final = 1024
"""The longest key that the common object stores allow."""
SEGMENT_CHARS_MAX: Final = 200
"""The longest name that every file system allows (255), less room for the suffix of a temporary file."""
assert SEGMENT_CHARS_MAX <= KEY_CHARS_MAX

_ODD: Final = re.compile(rb"[^a-z0-9_-]")
_DIGEST_BYTES: Final = 16
_KEPT_CHARS: Final = SEGMENT_CHARS_MAX - 2 * _DIGEST_BYTES - len("==")
assert _KEPT_CHARS > 0

_SEGMENT: Final = rf"(?!\.\.?(?:/|\Z))[A-Za-z0-9._=-]{{1,{SEGMENT_CHARS_MAX}}}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?")


def segment(text: str) -> str:
    """Return ``text`` as one segment of a key: different for each text, even on case-insensitive file systems.

    Each byte that is not a small letter, a digit, ``-`` or ``_`` becomes ``=`` and two hexadecimal digits.  A text that
    is too long is cut, and ends in ``==`` and a hash of the whole.

    >>> segment("s-7f"), segment("a/b"), segment(".."), segment("A") != segment("a")
    ('s-7f', 'a=2fb', '=2e=2e', True)
    >>> len(segment("x" * 1000)) == SEGMENT_CHARS_MAX and is_key(segment("x" * 1000))
    True
    """
    raw = text.encode("utf-8", "surrogatepass")
    written = _ODD.sub(lambda byte: b"=%02x" % ord(byte[0]), raw).decode() or "="
    if len(written) <= SEGMENT_CHARS_MAX:
        return written
    return f"{written[:_KEPT_CHARS]}=={blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()}"


def is_key(text: str) -> bool:
    """Return whether ``text`` is a valid key.

    >>> is_key("parts/s1/part-0.parquet"), is_key("a/../b"), is_key("/a"), is_key("a b"), is_key("")
    (True, False, False, False, False)
    """
    return len(text) <= KEY_CHARS_MAX and _KEY.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Raise `InvalidUsage` if ``key`` is not a valid key."""
    if not is_key(key):
        raise InvalidUsage(f"{key!r} is not a Blob key: segments of [A-Za-z0-9._=-] between slashes, never '.' or '..'")


def check_prefix(prefix: str) -> None:
    """Raise `InvalidUsage` if no key can start with ``prefix``.  Every key starts with the empty prefix.

    >>> for prefix in ("", "parts", "parts/", "parts/s1/pa"):
    ...     check_prefix(prefix)
    """
    if len(prefix) > KEY_CHARS_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidUsage(f"no Blob key starts with {prefix!r}")
