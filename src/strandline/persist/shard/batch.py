"""Batches: the updates between two frontiers, the parts that hold them, and the keys of these in Blob.

A batch described by ``[lower, upper)`` holds exactly the shard's updates with ``lower <= time < upper``.  Its rows lie
in *parts*: a Blob object that Spark reads (`BlobPart`), or bytes kept in the shard's state itself (`InlinePart`).  A
batch carries what can be checked without reading it: how many updates, the sum of their diffs, and a `Digest`.

A key alone shows what an object is and when it was begun.  A key is never reused.

    <shard>/parts/<ms>-<id>/…       the parts of one batch; <ms>: when it was begun, by the shard's walltime
    <shard>/rollup/<seqno>-<id>     a rollup
    <shard>/doomed/<ms>-<id>        a list of objects that nothing names now, to be deleted at <ms>
    scratch./<ms>-<id>/…            rows that a process has put aside; no shard's segment has a point
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from strandline.errors import InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier, as_time
from strandline.store.protocols import segment

INLINE_PART_BYTES_MAX: Final = 16 << 10
INLINE_SHARD_BYTES_MAX: Final = 256 << 10
assert INLINE_PART_BYTES_MAX <= INLINE_SHARD_BYTES_MAX

_LANE: Final = 1 << 64


class Digest(msgspec.Struct, frozen=True):
    """Two sums modulo 2**64.

    It is Σ diff × hash(row), time excluded, in two 64-bit lanes: a group homomorphism from multisets.  So equal
    contents have equal digests whatever the batching, and the digest of a union is the sum.  Trap: it says nothing
    about times.

    >>> Digest(2**64 - 1, 5) + Digest(2, 1)
    Digest(low=1, high=6)
    >>> Digest(3, 4) - Digest(3, 4) == NOTHING
    True
    """

    low: int
    high: int

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.low + other.low) % _LANE, (self.high + other.high) % _LANE)

    def __sub__(self, other: Digest) -> Digest:
        return Digest((self.low - other.low) % _LANE, (self.high - other.high) % _LANE)


NOTHING: Final = Digest(0, 0)


class Window(msgspec.Struct, frozen=True):
    """The part of a part that readers see: updates at ``lower <= time < upper``, times moved up to ``advance``.

    The stored object stays as it was written.  An empty ``upper`` cuts nothing off.
    """

    lower: int = 0
    upper: Frontier = EMPTY
    advance: int = 0


class InlinePart(msgspec.Struct, frozen=True):
    """Updates kept in the state: ``data`` is the engine's (or `records`') encoding, covered by the state's own seal.

    ``rows`` counts all of them, whatever the window shows.  Its ``repr`` omits them, because messages quote states.
    """

    data: bytes
    rows: int
    window: Window | None = None

    def __repr__(self) -> str:
        return f"InlinePart(rows={self.rows}, window={self.window})"

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


class KeyRange(msgspec.Struct, frozen=True):
    """Bounds of a part's first sort column, as Parquet stores it: a number, or text; None: not bounded on that side.

    NULL comes before all values, so a part that holds one has no ``least``.
    """

    least: int | str | None
    greatest: int | str | None


class BlobPart(msgspec.Struct, frozen=True):
    """Updates in one Blob object.

    ``footer_crc`` is the CRC32C of the object's last bytes from the footer on (Parquet: footer, its length and the
    magic), checked on every open together with ``size`` and ``rows``; the pages carry CRCs of their own.  ``sidecar``
    is the key of Hadoop's checksum file, kept and deleted with the part; empty where there is none.  ``keys`` is known
    where the batch has a sort order of its own and Parquet keeps that column's bounds.
    """

    key: str
    size: int
    rows: int
    footer_crc: int
    sidecar: str
    window: Window | None = None
    keys: KeyRange | None = None


Part: TypeAlias = InlinePart | BlobPart


class Staged(msgspec.Struct, frozen=True):
    """A batch that is written and in no shard yet: plain data, so that one worker stages and another appends.

    ``plain`` says that every diff is exactly +1 (then a scan needs no consolidation).  ``errors`` counts the updates of
    the err half.  ``since`` is beyond the minimum only for what compaction wrote: its times were advanced to there.
    ``sort`` are the columns by which the rows of each part ascend before their times; empty: by all of them.
    The caller that staged it must append it, or pass it to `RowJobs.discard` after a *definite* refusal.  After an
    unknown outcome (or once fenced) the caller must leave it alone.
    """

    lower: Frontier
    upper: Frontier
    parts: tuple[Part, ...]
    rows: int
    diffs: int
    digest: Digest
    plain: bool
    errors: int = 0
    since: Frontier = MINIMUM
    sort: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.lower < self.upper:
            raise InvalidUsage(f"a batch cannot span [{self.lower}, {self.upper}): it is empty")
        stored = sum(p.rows for p in self.parts)
        cut = any(p.window is not None for p in self.parts)
        if stored != self.rows and not (cut and self.rows < stored):
            raise InvalidUsage(f"a batch of {self.rows} updates cannot lie in parts of {[p.rows for p in self.parts]}")


def as_batch(staged: Staged) -> Batch:
    """Return the batch that ``staged`` is once it is in a shard alone."""
    return Batch(
        staged.lower,
        staged.upper,
        staged.since,
        staged.parts,
        staged.rows,
        staged.diffs,
        staged.digest,
        staged.plain,
        staged.errors,
        staged.sort,
    )


def narrowed(staged: Staged, lower: Frontier, upper: Frontier) -> tuple[Part, ...]:
    """Return the parts of ``staged``, restricted to ``[lower, upper)``; no part is rewritten.

    The sums over the restricted parts are not known without reading them (`RowJobs.trim`).

    Raises `InvalidUsage` if the bounds are not within the batch's own, or its updates were given another time.
    """
    if not (staged.lower <= lower < upper <= staged.upper):
        raise InvalidUsage(f"a batch of [{staged.lower}, {staged.upper}) does not hold [{lower}, {upper})")
    if any(p.window is not None and p.window.advance for p in staged.parts):
        raise InvalidUsage(f"a batch whose updates were moved to {staged.lower} cannot be cut by their old times")
    return tuple(replace(part, window=Window(as_time(lower), upper)) for part in staged.parts)


def retimed(staged: Staged, lower: Frontier, upper: Frontier) -> Staged:
    """Return ``staged`` for ``[lower, upper)``, times before ``lower`` moved up to it.

    An append that lost a race for its time uses this to try a later time.  No part is rewritten, so the retry costs
    nothing.  Sums and digest ignore times, so they stay.

    Raises `InvalidUsage` if a time would go back, if updates that were cut off would become visible, or if the batch
    was compacted.
    """
    if not lower < upper:
        raise InvalidUsage(f"a batch cannot span [{lower}, {upper}): it is empty")
    if not staged.lower <= lower or not staged.upper <= upper:
        raise InvalidUsage(f"a batch of [{staged.lower}, {staged.upper}) cannot go back to [{lower}, {upper})")
    if staged.since != MINIMUM:
        raise InvalidUsage(f"a batch that was compacted to {staged.since} cannot be given other times")
    if any(p.window is not None and not p.window.advance for p in staged.parts):
        raise InvalidUsage(f"a batch that was cut to [{staged.lower}, {staged.upper}) cannot be given other times")
    if lower == staged.lower:
        return replace(staged, upper=upper)
    window = Window(advance=as_time(lower))
    return replace(staged, lower=lower, upper=upper, parts=tuple(replace(p, window=window) for p in staged.parts))


class Batch(msgspec.Struct, frozen=True):
    """A batch of a shard.  ``since``: its times may have been advanced to here by compaction; ``sort``: as `Staged`."""

    lower: Frontier
    upper: Frontier
    since: Frontier
    parts: tuple[Part, ...]
    rows: int
    diffs: int
    digest: Digest
    plain: bool
    errors: int = 0
    sort: tuple[str, ...] = ()

    @property
    def inline_bytes(self) -> int:
        """Bytes of the state that this batch's inline parts take."""
        total = 0
        for part in self.parts:
            if isinstance(part, InlinePart):
                total += len(part.data)
        return total


def shard_prefix(shard: str) -> str:
    """Return the prefix of all keys of a shard."""
    return f"{segment(shard)}/"


def parts_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's parts."""
    return f"{segment(shard)}/parts/"


def rollups_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's rollups."""
    return f"{segment(shard)}/rollup/"


def doomed_prefix(shard: str) -> str:
    """Return the prefix of the keys of a shard's lists of doomed objects."""
    return f"{segment(shard)}/doomed/"


def scratch_prefix() -> str:
    """Return the prefix of the keys of what processes have put aside: of no shard, and of use to its writer alone."""
    return "scratch./"


def named_time(prefix: str, key: str) -> int | None:
    """Return the number in ``key`` right after ``prefix``: a time, or a rollup's seqno; None if there is none.

    >>> named_time("s/parts/", "s/parts/1700-b-7/part.parquet"), named_time("s/parts/", "s/parts/7/x")
    (1700, None)
    """
    number, dash, _ = key.removeprefix(prefix).partition("-")
    return int(number) if key.startswith(prefix) and dash and number.isascii() and number.isdigit() else None
