"""The topic of checkpoints: where each materialization and key range is, and which session opened it last.

It is compacted, so each key keeps its last record.  A range has two keys.  ``opened``: every session writes it before
it reads the topic, so that of two sessions that overlap at least one sees the other.  ``checkpoint``: written by each
transaction, with the messages that it covers, so both are there or neither is.

The ranges that have a ``checkpoint`` do not overlap (`tiles`): a session that opens a new one takes it out of others.

Both are written with the transactional id of the range.  A session that opens it raises the epoch of that id: from
then on the older one can commit nothing (law M3).

Law: M3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import msgspec

from strandline.errors import CorruptionError
from strandline.materialize.drivers.rows.identity import label
from strandline.materialize.drivers.tiles import checkpoint_of, left_of
from strandline.materialize.protocol.refusals import UNSUITED
from strandline.materialize.protocol.task import Checkpoint, KeyRange

PARTITION: Final = 0
"""The only partition that is written, so that the records have one order."""


@dataclass(frozen=True, slots=True)
class Held:
    """One key range of one materialization.

    >>> from strandline.materialize.protocol.task import WHOLE
    >>> Held("m", WHOLE).label, Held("m", KeyRange(0, 9)).label
    ('m', 'm[00000000-00000009]')
    >>> Held("a b", WHOLE).transactional_id("strandline-checkpoints")
    'strandline-checkpoints.a%20b.00000000-ffffffff'
    """

    task: str
    range: KeyRange

    @property
    def label(self) -> str:
        """The name that its messages carry."""
        return label(self.task, self.range)

    def transactional_id(self, topic: str) -> str:
        """Return the id under which it writes; ``topic``: that of the checkpoints."""
        return f"{topic}.{quote(self.task, safe='')}.{self.range}"

    def overlaps(self, other: Held) -> bool:
        """Return whether both are of one task and share a key hash."""
        ranges = self.range, other.range
        return self.task == other.task and max(r.begin for r in ranges) <= min(r.end for r in ranges)


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a record."""

    task: str
    begin: int
    end: int
    kind: str

    @property
    def held(self) -> Held:
        """The range that it is about."""
        return Held(self.task, KeyRange(self.begin, self.end))


class Committed(msgspec.Struct, frozen=True):
    """The value of a ``checkpoint``: that of the last transaction, and which one it was."""

    transaction: int
    times: dict[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read."""

    offset: int
    key: bytes
    value: bytes | None


OPENED: Final = "opened"
CHECKPOINT: Final = "checkpoint"
_encoder: Final = msgspec.json.Encoder(order="deterministic")
_keys: Final = msgspec.json.Decoder(Key)
_values: Final = msgspec.json.Decoder(Committed)


def key_of(held: Held, kind: str) -> bytes:
    """Return the key of a record of ``held``."""
    return _encoder.encode(Key(held.task, held.range.begin, held.range.end, kind))


def value_of(transaction: int, checkpoint: Checkpoint) -> bytes:
    """Return the value of a ``checkpoint``."""
    return _encoder.encode(Committed(transaction, dict(checkpoint.times)))


@dataclass(frozen=True, slots=True)
class Beginning:
    """The last transaction and the checkpoint of a range, and what the topic must say of its ranges from now on.

    ``changes``: for each range its last commit, or None if it is no range any longer.
    """

    transaction: int
    checkpoint: Checkpoint
    changes: Mapping[Held, tuple[int, Checkpoint] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the topic says of one task: the offset of the last ``opened`` of each range, and its last commit."""

    opened: Mapping[Held, int]
    committed: Mapping[Held, tuple[int, Checkpoint]]

    @staticmethod
    def of(task: str, records: Iterable[Record]) -> Progress:
        """Return what ``records`` (all of the topic, in order) say of ``task``.

        Raises `CorruptionError`: another program wrote to the topic.
        """
        opened: dict[Held, int] = {}
        committed: dict[Held, tuple[int, Checkpoint]] = {}
        for record in records:
            try:
                key = _keys.decode(record.key)
                if key.task != task:
                    continue
                if record.value is None:
                    committed.pop(key.held, None)
                elif key.kind == OPENED:
                    opened[key.held] = record.offset
                else:
                    found = _values.decode(record.value)
                    committed[key.held] = (found.transaction, Checkpoint(tuple(sorted(found.times.items()))))
            except (msgspec.MsgspecError, ValueError) as error:
                about = {"has": f"has record {record.offset} of another program ({error})", "so": "it cannot be read"}
                to = "a topic without that record"
                raise CorruptionError(UNSUITED.said(endpoint="the topic of checkpoints", **about, to=to)) from error
        return Progress(opened, committed)

    def overlapping(self, held: Held) -> frozenset[Held]:
        """Return the other ranges that were ever opened and overlap ``held``."""
        return frozenset(other for other in {*self.opened, *self.committed} if other != held and other.overlaps(held))

    def taken_over(self, held: Held, offset: int) -> bool:
        """Return whether a session that overlaps ``held`` was opened after the one at ``offset``."""
        return any(at > offset and other.overlaps(held) for other, at in self.opened.items())

    def begin(self, held: Held, state_keys: Collection[str]) -> Beginning:
        """Return from where ``held`` goes on.  Raises `DefinitionError` as `tiles.checkpoint_of`."""
        others = {other.range: found for other, found in self.committed.items() if other.overlaps(held)}
        checkpoints = {range_: checkpoint for range_, (_, checkpoint) in others.items()}
        base = checkpoint_of(held.task, held.range, checkpoints, state_keys)
        transaction = max((number for number, _ in others.values()), default=0)
        if held.range in others or not others:
            return Beginning(transaction, base)
        changes: dict[Held, tuple[int, Checkpoint] | None] = {Held(held.task, range_): None for range_ in others}
        for range_, found in others.items():
            changes |= {Held(held.task, left): found for left in left_of(range_, [held.range])}
        return Beginning(transaction, base, {**changes, held: (transaction, base)})
