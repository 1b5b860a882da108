"""Shares: which task of Spark's gives which rows, such that every row is given exactly as often as it is there.

A row may be in several parts: inserted in one, withdrawn in another.  Only a row that some update takes away needs its
updates added up; all others are given as they are stored.  So there are four ways, the cheapest that is exact:

- *as stored*: no part takes a row away.  Each part is read once, by one task.
- *alone*: the parts are few enough for one task, which adds all of it up.  Each part is read once.
- *apart*: the withdrawals are few.  Each part is read by one task, which leaves out the rows that were ever withdrawn,
  and once more by one last task, which adds up just these.  The parts with withdrawals are read by every task.
- *ranges*: else, the rows are cut by a column into ranges, and the task of each adds up what lies in its range.  A part
  is read by each task whose range it reaches into, and there only the row groups that may.

Everything here is pure.  A share is plain data: what Spark sends to a task are its bytes in our own encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from strandline.persist.shard.batch import BlobPart, InlinePart

TASK_ROWS: Final = 1_000_000
"""About how many updates a task reads as its own, if parts are not larger."""
TASK_BYTES: Final = 64 << 20
"""About how many stored bytes."""
ALONE_ROWS_MAX: Final = 500_000
"""One task adds up so many updates by itself."""
WITHDRAWN_ROWS_MAX: Final = 500_000
"""If parts that take rows away hold more updates, each task would read too much beside its own."""


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """Updates that lie in the shard's state, which tasks do not open."""

    data: bytes
    rows: int

    @property
    def part(self) -> InlinePart:
        """The part itself."""
        return InlinePart(self.data, self.rows)


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """Updates that lie in an object of Blob: what `BlobPart` says of them."""

    key: str
    size: int
    rows: int
    footer_crc: int
    sidecar: str

    @property
    def part(self) -> BlobPart:
        """The part itself."""
        return BlobPart(self.key, self.size, self.rows, self.footer_crc, self.sidecar)


class Piece(msgspec.Struct, frozen=True):
    """What shows of a part: updates with ``lower <= time < upper``, times moved up to ``advance``."""

    held: Inline | Stored
    lower: int
    upper: int
    advance: int


class Gives(Enum):
    """Which rows a share gives of its pieces."""

    ALL = "all"
    """Every update as it is stored."""
    SUMS = "sums"
    """What all updates add up to."""
    OTHERS = "others"
    """The updates of rows that no update of ``beside`` takes away, as they are stored."""
    WITHDRAWN = "withdrawn"
    """What the updates of all other rows add up to."""


class Within(msgspec.Struct, frozen=True):
    """Rows from the ``number``-th of ``cuts`` (an Arrow stream, of one column) up to the next; NULL is in the first."""

    column: str
    cuts: bytes
    number: int


class Share(msgspec.Struct, frozen=True):
    """What one task gives."""

    gives: Gives
    pieces: tuple[Piece, ...]
    beside: tuple[Piece, ...] = ()
    within: Within | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A piece, and what is known of it before it is read: whether one of its updates may take a row away."""

    piece: Piece
    rows: int
    size: int
    withdraws: bool


Cuts: TypeAlias = Callable[[int], tuple[str, bytes, int] | None]
"""Where to cut rows into about so many ranges: a column, its cuts, how many ranges that makes; None: there is no column
that can be cut."""


def shares(known: Sequence[Known], cuts: Cuts) -> list[Share]:
    """Return the shares of a read."""
    pieces = tuple(each.piece for each in known)
    if not any(each.withdraws for each in known):
        return [Share(Gives.ALL, group) for group in _groups(known)]
    rows = sum(each.rows for each in known)
    if rows <= ALONE_ROWS_MAX:
        return [Share(Gives.SUMS, pieces)]
    beside = tuple(each.piece for each in known if each.withdraws)
    if sum(each.rows for each in known if each.withdraws) <= WITHDRAWN_ROWS_MAX:
        return [
            *(Share(Gives.OTHERS, group, beside) for group in _groups(known)),
            Share(Gives.WITHDRAWN, pieces, beside),
        ]
    found = cuts(1 + rows // TASK_ROWS)
    if found is None:
        return [Share(Gives.SUMS, pieces)]
    column, where, many = found
    return [Share(Gives.SUMS, pieces, within=Within(column, where, number)) for number in range(many)]


def _groups(known: Sequence[Known]) -> list[tuple[Piece, ...]]:
    """Return the pieces in groups that a task may read, in their order."""
    groups: list[list[Piece]] = []
    rows = size = 0
    for each in known:
        if not groups or rows + each.rows > TASK_ROWS or size + each.size > TASK_BYTES:
            groups.append([])
            rows = size = 0
        groups[-1].append(each.piece)
        rows, size = rows + each.rows, size + each.size
    return [tuple(group) for group in groups]


_decoder: Final = msgspec.msgpack.Decoder(Share)


def encode(share: Share) -> bytes:
    """Return the bytes of a share."""
    return msgspec.msgpack.encode(share)


def decode(data: bytes) -> Share:
    """Return the share that `encode` made these bytes of."""
    return _decoder.decode(data)
