"""The recovery log of a task: one fenced value in Consensus.

Its record holds the writer's epoch, a token, how far the task has come (`task.Progress`) and the driver's state;
writing it is one compare-and-set, so all of it changes together.  For drivers whose endpoint keeps no checkpoint this
write *is* the commit.

Whoever opens the log writes it at once.  An older opener's next write then misses and is a `FencedError`; it can never
succeed again, whenever it wakes, because the seqno it expects is gone.  An opener whose epoch is below the record's is
refused.

After an unknown outcome the log is read again and the writer looks for *its own token*: found, the write is durable;
the seqno still the old one, it is not yet, and the same bytes are tried again (if the first attempt lands late, the
retry misses and finds its token); anything else, somebody has taken over.

Source: design page "materialize" (recovery log; durable at); craft "reliability" (F1 outcomes).   Law: M3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from strandline.errors import CorruptionError, FencedError, InvalidUsage, StoreError, Unavailable
from strandline.materialize.task import Checkpoint, Extent, Progress
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Versioned
from strandline.store.seal import Kind, seal, unseal

FORMAT: Final = 1
KEEP_VERSIONS: Final = 64
"""Old versions are forgotten after so many writes."""
ATTEMPTS_MAX: Final = 8
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.6
assert BACKOFF_FIRST_S <= BACKOFF_MAX_S


@dataclass(frozen=True, slots=True)
class Record:
    """What the log holds."""

    epoch: int = 0
    token: str = ""
    progress: Progress = field(default_factory=Progress)
    state: Any = field(default_factory=dict)


class _ExtentForm(msgspec.Struct, forbid_unknown_fields=True):
    base: str
    start: str
    upper: int


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    """The record's JSON: checkpoints in their own encoding."""

    format: int
    epoch: int
    token: str
    checkpoint: str
    position: str
    extent: _ExtentForm | None
    state: Any


def encode(key: str, record: Record) -> bytes:
    """Return the sealed bytes of ``record``."""
    progress, extent = record.progress, record.progress.extent
    form = _Form(
        FORMAT,
        record.epoch,
        record.token,
        progress.checkpoint.encode(),
        progress.position.encode(),
        None if extent is None else _ExtentForm(extent.base.encode(), extent.start.encode(), extent.upper),
        record.state,
    )
    return seal(Kind.CHECKPOINT, key, msgspec.json.encode(form))


def decode(key: str, data: bytes) -> Record:
    """Return the record that `encode` made.  Raises `CorruptionError` for anything else."""
    body = unseal(Kind.CHECKPOINT, key, data)
    try:
        form = msgspec.json.decode(body, type=_Form)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"recovery log {key!r}: not a record of a recovery log ({error})") from error
    if form.format != FORMAT:
        raise CorruptionError(
            f"recovery log {key!r}: format {form.format} was written by another version, this one knows {FORMAT}"
        )
    extent = form.extent
    progress = Progress(
        Checkpoint.decode(form.checkpoint),
        Checkpoint.decode(form.position),
        None
        if extent is None
        else Extent(Checkpoint.decode(extent.base), Checkpoint.decode(extent.start), extent.upper),
    )
    return Record(form.epoch, form.token, progress, form.state)


async def peek(consensus: Consensus, key: str) -> Progress:
    """Return how far the task of the log ``key`` has come, without taking the log over; changes nothing."""
    head = await consensus.head(key)
    return Progress() if head is None else decode(key, head.data).progress


class RecoveryLog:
    """One opener's handle.  Not for concurrent use: a task writes its log one record after the other."""

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus, key: str, epoch: int) -> None:
        self._clock = clock
        self._ids = ids
        self._consensus = consensus
        self._key = key
        self._epoch = epoch
        self._seqno: int | None = None
        self._record: Record | None = None

    async def open(self) -> Record:
        """Take the log over from whoever had it; return what it holds.

        Raises:
            FencedError: it belongs to a higher epoch.
            Unavailable: Consensus does not answer.
        """
        self._record = None
        for attempt in range(ATTEMPTS_MAX):
            head = await self._head()
            found = Record() if head is None else decode(self._key, head.data)
            if found.epoch > self._epoch:
                raise FencedError(f"recovery log {self._key!r} belongs to epoch {found.epoch}; this is {self._epoch}")
            mine = Record(self._epoch, self._ids.fresh("log"), found.progress, found.state)
            seqno = await self._install(None if head is None else head.seqno, mine)
            if seqno is not None:
                self._seqno, self._record = seqno, mine
                return mine
            await self._pause(attempt)  # another opener came between: look whether its epoch is above ours
        raise Unavailable(f"recovery log {self._key!r}: others kept opening it; try again later")

    async def write(self, progress: Progress, state: Any) -> None:
        """Replace the record; when this returns it is durable.

        Raises:
            FencedError: another opener has taken over; stop.
            Unavailable: the outcome is not known and Consensus does not answer: open the log again to learn it.
        """
        if self._record is None or self._seqno is None:
            raise InvalidUsage(f"recovery log {self._key!r} is not open")
        record = Record(self._epoch, self._ids.fresh("log"), progress, state)
        seqno = await self._install(self._seqno, record)
        if seqno is None:
            self._record = None
            raise FencedError(f"recovery log {self._key!r} was taken over from epoch {self._epoch}")
        self._seqno, self._record = seqno, record
        if seqno % KEEP_VERSIONS == 0:
            await self._forget(seqno)

    @property
    def record(self) -> Record:
        """What this handle last wrote."""
        if self._record is None:
            raise InvalidUsage(f"recovery log {self._key!r} is not open")
        return self._record

    async def _install(self, expected: int | None, record: Record) -> int | None:
        """Write ``record`` after ``expected``; return its seqno, or None if somebody else's stands there."""
        seqno = 0 if expected is None else expected + 1
        request = CompareAndSet(self._key, expected, Versioned(seqno, encode(self._key, record)))
        for attempt in range(ATTEMPTS_MAX):
            try:
                outcome = await self._consensus.compare_and_set(request)
            except StoreError:
                await self._pause(attempt)
                continue
            if isinstance(outcome, Committed):
                return seqno
            if attempt == 0:
                return None
            # An earlier attempt of unknown outcome may be what we have lost against.
            head = await self._head()
            landed = head is not None and head.seqno == seqno and decode(self._key, head.data).token == record.token
            return seqno if landed else None
        raise Unavailable(f"recovery log {self._key!r} cannot be written, and it is not known whether it was")

    async def _head(self) -> Versioned | None:
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._consensus.head(self._key)
            except StoreError:
                await self._pause(attempt)
        raise Unavailable(f"recovery log {self._key!r} cannot be read")

    async def _forget(self, seqno: int) -> None:
        """Drop old versions.  Housekeeping: a failure only means that the next one drops more."""
        try:
            await self._consensus.truncate(self._key, seqno)
        except StoreError:
            return

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep(min(BACKOFF_FIRST_S * 2**attempt, BACKOFF_MAX_S))
