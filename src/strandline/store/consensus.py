"""Consensus: per key, a sequence of versions that changes by compare-and-set alone.

Implementations must be linearizable per key.  A version is ``(seqno, data)``.  The first version of a key may have
any seqno from 0 to `SEQNO_MAX`; every later one is exactly its predecessor's plus one.  Truncation forgets old
versions, never the head, so a writer that expects an old seqno is refused for ever.

Contract suite: `strandline.testing.contracts.consensus_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from strandline.errors import InvalidUsage

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
