"""A source in memory: partitions of numbered messages, which are deleted when `commit` allows it.

It is as strict as the contract allows: committed messages are deleted at once, a read too early or too late raises
`SourceError`, and every read is recorded (``reads``).  A message whose value is None cannot be decoded.  A `Withdrawn`
message takes an earlier one of its partition back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strandline.algebra.messages import TAKES_BACK
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.sources.reader import Plain, Records, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.lists.list_engine import updates

SCHEMA: Final = Schema((Column("partition", "string"), Column("offset", "bigint"), Column("value", "bigint")))


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A message that takes back the message at ``offset`` of its partition, whose value was ``value``."""

    offset: int
    value: int | None


Message: TypeAlias = int | Withdrawn | None


@dataclass
class Upstream:
    """The upstream, which survives every crash of a reader: its messages, and those that may be deleted.

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
        """Return the offsets up to which it can be read."""
        return Offsets({partition: len(values) for partition, values in self.partitions.items()})


class ListReader:
    """A `SourceReader` of an `Upstream`."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.reads: list[tuple[str, int]] = []

    @property
    def bounded(self) -> bool:
        """Return that upstream deletes messages as soon as it may."""
        return True

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return TakenBack() if self.upstream.retracts else Plain()

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: partitions are read from their first message."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        return self.upstream.frontier

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
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
                    message = self.upstream.partitions[partition][offset]
                    rows.append({**_row(partition, offset, message, locate=locate), TIME: each.time})
        return updates(SCHEMA, rows)

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        self.upstream.forgotten = self.upstream.forgotten.join(resume)

    async def close(self) -> None:
        """See `SourceReader.close`."""

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()


def undecodable(partition: str, offset: int, *, taken_back: bool = False) -> str:
    """Return the error of the message at ``offset``, or of the message that takes it back."""
    reason = f"{TAKES_BACK if taken_back else ''}it cannot be decoded"
    return json.dumps({"partition": partition, "offset": offset, "reason": reason, "raw": f"{partition}/{offset}"})


def _row(partition: str, offset: int, message: Message, *, locate: bool) -> dict[str, object]:
    """Return the update of ``message``, without its time: a row, its withdrawal, or the error of either."""
    back = isinstance(message, Withdrawn)
    at, value = (message.offset, message.value) if isinstance(message, Withdrawn) else (offset, message)
    if value is None:
        return {ERROR: undecodable(partition, at, taken_back=back) if locate else "somewhere"}
    return {"partition": partition, "offset": at, "value": value, DIFF: -1 if back else 1}
