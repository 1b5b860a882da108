"""A source in memory: partitions of numbered messages, forgotten when `commit` says they may be, and not before.

It is as unforgiving as the contract allows: what was committed is gone at once, what is read too early or too late is
a `SourceError`, and every read is written down (``reads``).  A message whose value is None cannot be decoded; a
`TakesBack` takes an earlier message back, whether that could be decoded or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.algebra.undecoded import TAKES_BACK
from strandline.errors import SourceError, Unavailable
from strandline.frontier.gauge import Offsets
from strandline.persist.plane import Rows
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.list_engine import updates

SCHEMA: Final = Schema((Column("partition", "string"), Column("offset", "bigint"), Column("value", "bigint")))


@dataclass(frozen=True, slots=True)
class TakesBack:
    """A message that takes back what the message ``offset`` of its partition brought."""

    offset: int


Message: TypeAlias = int | TakesBack | None


@dataclass
class Upstream:
    """What lies outside and survives every crash of a reader: messages, and what may be forgotten of them.

    ``retracts``: there may be messages that take others back.
    """

    partitions: dict[str, list[Message]] = field(default_factory=dict)
    forgotten: Offsets = NOTHING_READ
    down: bool = False
    retracts: bool = False

    def produce(self, partition: str, *values: Message) -> None:
        """Append messages."""
        self.partitions.setdefault(partition, []).extend(values)

    @property
    def frontier(self) -> Offsets:
        """How far it could be read."""
        return Offsets({partition: len(values) for partition, values in self.partitions.items()})


class ListReader:
    """A `SourceReader` of an `Upstream`."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.reads: list[tuple[str, int]] = []

    @property
    def bounded(self) -> bool:
        """It forgets as soon as it may."""
        return True

    @property
    def retracts(self) -> bool:
        """As its upstream."""
        return self.upstream.retracts

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        return self.upstream.frontier

    async def read(self, slices: Sequence[Slice], *, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        rows = []
        for each in slices:
            for partition, end in each.upper.entries:
                for offset in range(each.lower[partition], end):
                    if self.upstream.forgotten.covers(partition, offset):
                        raise SourceError(f"message {offset} of partition {partition!r} is forgotten upstream")
                    if not self.upstream.frontier.covers(partition, offset):
                        raise SourceError(f"message {offset} of partition {partition!r} is not there")
                    self.reads.append((partition, offset))
                    rows.append(self._row(partition, offset, locate=locate) | {TIME: each.time})
        return updates(SCHEMA, rows)

    def _row(self, partition: str, offset: int, *, locate: bool) -> dict[str, Any]:
        """Return what a message brings: a row, the same row taken back, or the error of either."""
        message = self.upstream.partitions[partition][offset]
        of = message.offset if isinstance(message, TakesBack) else offset
        value = self.upstream.partitions[partition][of]
        if value is None:
            return {ERROR: (TAKES_BACK if of != offset else "") + f"{partition}/{of}" if locate else "somewhere"}
        return {"partition": partition, "offset": of, "value": value, DIFF: 1 if of == offset else -1}

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        self.upstream.forgotten = self.upstream.forgotten.join(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()
