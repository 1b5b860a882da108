"""The recovery log of a task: one fenced value, in a register of Consensus.

Its record holds the writer's epoch, a token, how far the task has come (`task.Progress`) and the driver's state;
writing it is one compare-and-set, so all of it changes together.  For drivers whose endpoint keeps no checkpoint this
write *is* the commit.  After a lost answer the register finds out whether the write happened
(`persist/handles/register.py`).

Opening the log writes it at once, under a fresh token.  An older opener finds another token at its next write and is
fenced; it can never write again.  An opener whose epoch is below the record's is refused.

The log of a task that has let a table go is *fenced*: what runs it as it was before is fenced at its next write, and
cannot open the log again, whether or not any other process runs the task.

The log of a task that was dropped is *ended*: opened under an epoch that no other opener has.  A process that still
runs the task is fenced at its next write, and cannot open the log again.

Law: M3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from strandline.errors import CorruptionError, FencedError, InvalidUsage
from strandline.materialize.protocol.greatest import NOT_KNOWN, Greatest
from strandline.materialize.protocol.refusals import DAMAGED, OTHER_VERSION
from strandline.materialize.protocol.task import Checkpoint, Extent, KeyRange, Progress
from strandline.persist.handles.register import Register
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Consensus
from strandline.store.seal import Kind

FORMAT: Final = 1
FIRST_OPENED: Final = 1
"""`Record.opened` of a task that just got its splits."""
ENDED: Final = 2**63 - 1
"""The epoch of a log whose task was dropped."""
RESTART: Final = "restart"
"""Under this name a driver's state may hold the text of an earlier checkpoint (`Checkpoint.encode`)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One split: its key range, and the key of its log."""

    range: KeyRange
    log: str


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the log."""

    epoch: int = 0
    token: str = ""
    progress: Progress = field(default_factory=Progress)
    state: Any = field(default_factory=dict)
    layout: tuple[Share, ...] = ()
    """The splits of the task, of which each has a log of its own; none: this is the log of the whole task."""
    opened: int = 0
    """How often the log was opened since the task has splits: the epoch of their logs."""
    greatest: Greatest = field(default_factory=dict)
    """The greatest key of each binding that was ever stored, or may have been."""
    sent: int = 0
    """Up to where changes may have been sent, if beyond ``progress``, which went back to where the endpoint was.

    An endpoint without a fence may still take them from a session of before.
    """

    @property
    def restart(self) -> Checkpoint | None:
        """The checkpoint that the driver's state names under `RESTART`: where the endpoint is, unless `Opened` says.

        Until the state names another one, nothing that changed after it is released.
        """
        named = self.state.get(RESTART) if isinstance(self.state, Mapping) else None
        return None if named is None else Checkpoint.decode(named)


class _ExtentForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    base: str
    start: str
    upper: int
    keys: tuple[str, ...] = ()


class _ShareForm(msgspec.Struct, forbid_unknown_fields=True):
    begin: int
    end: int
    log: str


class _Form(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The record as JSON, with checkpoints in their own encoding."""

    format: int
    epoch: int
    token: str
    checkpoint: str
    position: str
    extent: _ExtentForm | None
    state: Any
    layout: tuple[_ShareForm, ...] = ()
    opened: int = 0
    greatest: dict[str, tuple[int | str | None, ...] | None] = {}
    sent: int = 0


_decoder: Final = msgspec.json.Decoder(_Form)


def encode(record: Record) -> bytes:
    """Return the bytes of ``record``."""
    progress, extent = record.progress, record.progress.extent
    form = _Form(
        FORMAT,
        record.epoch,
        record.token,
        progress.checkpoint.encode(),
        progress.position.encode(),
        None if extent is None else _ExtentForm(extent.base.encode(), extent.start.encode(), extent.upper, extent.keys),
        record.state,
        tuple(_ShareForm(each.range.begin, each.range.end, each.log) for each in record.layout),
        record.opened,
        dict(record.greatest),
        record.sent,
    )
    return msgspec.json.encode(form)


def decode(key: str, body: bytes) -> Record:
    """Return the record that `encode` made, of the log ``key``.  Raises `CorruptionError` for anything else."""
    try:
        form = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(DAMAGED.said(what=f"recovery log {key!r}", why=error)) from error
    if form.format != FORMAT:
        raise CorruptionError(OTHER_VERSION.said(what=f"recovery log {key!r}", found=form.format, known=FORMAT))
    extent = form.extent
    progress = Progress(
        Checkpoint.decode(form.checkpoint),
        Checkpoint.decode(form.position),
        None
        if extent is None
        else Extent(Checkpoint.decode(extent.base), Checkpoint.decode(extent.start), extent.upper, extent.keys),
    )
    try:
        layout = tuple(Share(KeyRange(each.begin, each.end), each.log) for each in form.layout)
    except ValueError as error:
        raise CorruptionError(DAMAGED.said(what=f"recovery log {key!r}", why=error)) from error
    return Record(form.epoch, form.token, progress, form.state, layout, form.opened, form.greatest, form.sent)


async def peek(register: Register) -> Record:
    """Return the record of a log without taking the log over; changes nothing."""
    return _found(register.key, await register.read())


def register_of(key: str, clock: Clock, ids: Ids, consensus: Consensus) -> Register:
    """Return the register that holds the log ``key``."""
    return Register(key, clock, ids, consensus, kind=Kind.CHECKPOINT)


class RecoveryLog:
    """One opener's handle.  Not for concurrent use: a task writes one record after the other."""

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus, key: str, epoch: int) -> None:
        self._register = register_of(key, clock, ids, consensus)
        self._ids = ids
        self._key = key
        self._epoch = epoch
        self._record: Record | None = None

    async def open(self) -> Record:
        """Take the log over from an earlier opener; return its record.

        Raises:
            FencedError: it belongs to a higher epoch.
            CorruptionError: it holds no record.
            Unavailable, Indeterminate: Consensus does not answer.
        """
        self._record = None
        token = self._ids.fresh("log")
        mine = Record()

        def step(body: bytes | None) -> bytes:
            nonlocal mine
            found = _found(self._key, body)
            if found.epoch == ENDED > self._epoch:
                raise FencedError(f"recovery log {self._key!r} is over: its materialization was dropped")
            if found.epoch > self._epoch:
                raise FencedError(f"recovery log {self._key!r} belongs to epoch {found.epoch}; this is {self._epoch}")
            mine = self._taken_over(found, token)
            return encode(mine)

        await self._register.update(step)
        self._record = mine
        return mine

    async def fence(self) -> Record:
        """Take the log over from openers of lower epochs, unless one of this epoch has; return its record.

        The handle is not open after it.  An opener that ends the log (`ENDED`) replaces a record that cannot be read:
        no task could go on from it.

        Raises as `open`, but for `FencedError`.
        """
        token = self._ids.fresh("log")
        record = Record()

        def step(body: bytes | None) -> bytes | None:
            nonlocal record
            try:
                record = _found(self._key, body)
            except CorruptionError:
                if self._epoch != ENDED:
                    raise
                record = Record()
            if record.epoch >= self._epoch:
                return None
            record = self._taken_over(record, token)
            return encode(record)

        await self._register.update(step)
        return record

    def _taken_over(self, found: Record, token: str) -> Record:
        """Return the record with this opener's epoch and token; the logs of its splits get an epoch that none had."""
        return replace(found, epoch=self._epoch, token=token, opened=found.opened + 1 if found.layout else 0)

    async def write(self, progress: Progress, state: Any, greatest: Greatest | None = None) -> None:
        """Replace the record; when this returns it is durable.  ``greatest``: None: as they are.

        Raises:
            FencedError: another opener has taken over; stop.
            Unavailable: the record is not written, and Consensus does not answer.
            Indeterminate: the record may or may not be written: open the log again to find out.
        """
        greatest = self.record.greatest if greatest is None else greatest
        await self._replace(replace(self.record, progress=progress, state=state, greatest=greatest))

    async def lay_out(
        self, layout: tuple[Share, ...], progress: Progress, state: Any, greatest: Greatest = NOT_KNOWN
    ) -> None:
        """Give the task these splits, whose logs are there; none: let it go on whole from these.

        Raises as `write`.
        """
        opened = FIRST_OPENED if layout else 0
        await self._replace(
            replace(self.record, progress=progress, state=state, layout=layout, opened=opened, greatest=greatest)
        )

    async def begin(self, progress: Progress, state: Any, greatest: Greatest) -> None:
        """Make the log of a split, which must be new, and close it again.  Raises as `write`."""
        new = Record(self._epoch, self._ids.fresh("log"), progress, state, greatest=greatest)

        def step(body: bytes | None) -> bytes:
            if body is not None:
                raise InvalidUsage(f"recovery log {self._key!r} is there already")
            return encode(new)

        await self._register.update(step)

    async def _replace(self, changed: Record) -> None:
        last, sent = self.record, max(self.record.sent, self.record.progress.sent)
        behind = sent if sent > changed.progress.sent else 0
        new = replace(changed, token=self._ids.fresh("log"), sent=behind)

        def step(body: bytes | None) -> bytes:
            if _found(self._key, body).token != last.token:
                self._record = None
                raise FencedError(f"recovery log {self._key!r} was taken over from epoch {self._epoch}")
            return encode(new)

        await self._register.update(step)
        self._record = new

    @property
    def record(self) -> Record:
        """The record that this handle wrote last."""
        if self._record is None:
            raise InvalidUsage(f"recovery log {self._key!r} is not open")
        return self._record


def _found(key: str, body: bytes | None) -> Record:
    return Record() if body is None else decode(key, body)
