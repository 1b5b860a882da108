"""Steps: one output of a source made durable, binding by binding, each message once.

A step takes the bindings whose data are not durable yet, reads exactly their messages in one job and appends them at
their times.  How bindings are grouped into steps does not change a single update (law D).  Where upstream refuses a
range, a step takes half of its bindings, and so on: what is before the first bad binding becomes durable (law R5).

An output whose upstream keeps no past begins with a snapshot.  Its first step is one slice: all that happened by the
first time whose binding covers the snapshot, at that time.  Until it is durable nothing of the output is, so the reader
that comes after a crash takes a snapshot of its own, and no snapshot has to outlive the reader that took it.

An upstream that does not answer, or broke its promise, stalls the output: its upper stays, nothing wrong is appended.
`Stalled` is a value, because the other outputs go on.  A newer epoch is an exception: stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from msgspec import structs

from strandline.algebra.schema import Schema
from strandline.errors import CorruptionError, DefinitionError, SourceError, Unavailable, reason
from strandline.frontier import MINIMUM, Frontier, Offsets, as_time
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.plane import Engine
from strandline.problem import Problem, Stopped, Way
from strandline.sources.envelopes import Envelope, envelope_of
from strandline.sources.kinds import ConfirmsReads
from strandline.sources.reader import ColumnsAdded, Records, SourceReader
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.status import OutputStatus

KEYLESS: Final = Problem(
    "key-not-declared",
    "rows cannot be told by the key that is declared: {why}",
    Stopped.TABLE,
    (Way("drop the table, and create it with the columns of its key"),),
)


@dataclass(frozen=True, slots=True)
class Advanced:
    """The tick's time is bound, or the step's data are durable, up to ``upper``."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to do: all that is bound is durable."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing was bound or appended because of ``error``.  Trying again is harmless."""

    error: SourceError | Unavailable


Stepped: TypeAlias = Advanced | Idle | Stalled


@dataclass(frozen=True, slots=True)
class OutputShard:
    """An output of a source, open for writing.

    ``table``: what upstream calls it.
    """

    table: str
    schema: Schema
    data: WriteHandle


@dataclass(frozen=True, slots=True)
class _Due:
    """What the next step reads and makes durable: ``slices``, up to ``upper``.

    ``again``: some of it may have been read before.
    """

    slices: tuple[Slice, ...]
    upper: Frontier
    again: bool


class Steps:
    """The steps of one output.  One coroutine at a time calls it."""

    def __init__(self, output: OutputShard, reader: SourceReader, remap: RemapShard, engine: Engine) -> None:
        self.table = output.table
        self._schema = output.schema
        self._data = output.data
        self._reader = reader
        self._remap = remap
        self._engine = engine
        self._records: Records | None = None  # what `_envelope` is of
        self._envelope: Envelope | None = None
        # Times before it may have been read already, by us or by the process that bound them; none was for a shard that
        # was not there.
        self._begun = MINIMUM if output.data.made else remap.remap.upper
        self._slices_max: int | None = None  # of the next step; None: all that are bound
        self._by_range = False  # whether it is known that no snapshot is needed, or that it was taken
        self._snapshot: Offsets | None = None
        self._status = OutputStatus()

    @property
    def upper(self) -> Frontier:
        """The durable upper, as last seen."""
        return self._data.state.upper

    @property
    def status(self) -> OutputStatus:
        """What was done here."""
        snapshotting = self._snapshot is not None and self.upper == MINIMUM
        return replace(self._status, snapshotting=snapshotting, upper=self.upper)

    async def begin(self) -> Offsets:
        """Return what a binding must cover so that the first step can be made; nothing once it was.

        If upstream cannot take a snapshot now, the output stalls and there is nothing to cover.
        """
        if self._by_range:
            return NOTHING_READ
        if (await self._data.refresh()).upper != MINIMUM:
            self._by_range = True
            return NOTHING_READ
        try:
            await self._take_snapshot()
        except (SourceError, Unavailable) as error:
            self._stall(error)
        return self._snapshot or NOTHING_READ

    async def step(self) -> Stepped:
        """Make durable what is bound and not durable yet, in one append.

        A step does not straddle what may have been read before: that comes first, by itself, so that it is counted to
        the record.  Where the envelope looks at what is held, a step takes one binding.

        Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: the append may have happened; the next step looks.
        """
        lower = (await self._data.refresh()).upper
        try:
            if lower == MINIMUM and not self._by_range:
                await self._take_snapshot()
            made = await self._make(lower)
        except (SourceError, Unavailable) as error:
            if lower == MINIMUM:
                self._by_range, self._snapshot = False, None  # it may be lost: ask again
            return self._stall(error)
        return self._rest() if made is None else await self._append(made[0], lower, made[1])

    async def dismiss(self, errors: Rows, time: int) -> None:
        """Withdraw ``errors``, rows of the err half as they are held, at ``time``, which is bound for that.

        All that is bound before must be durable already.

        Raises:
            Unavailable: another instance went on meanwhile; nothing was withdrawn.
            FencedError: a newer epoch has taken over.
            Indeterminate: they may be withdrawn; look before you ask again.
        """
        await withdraw(errors, time, self._schema, self._data, self._remap, self._engine)

    async def _take_snapshot(self) -> None:
        """Have upstream open a snapshot, or keep it open, if the output needs one.  Nothing of it is durable."""
        self._snapshot = await self._reader.snapshot(self.table)
        self._settle()
        self._by_range = self._snapshot is None or self._snapshot == NOTHING_READ

    def _settle(self) -> Envelope:
        """Return the envelope of what the table's records are now: a snapshot may have changed that.

        Raises `SourceError` if rows of the output's schema cannot be such records.
        """
        records = self._reader.records(self.table)
        if self._envelope is None or records != self._records:
            try:
                self._envelope = envelope_of(records, self._schema, self._engine, self._data)
            except DefinitionError as error:
                raise SourceError(KEYLESS.said(why=error)) from error
            self._records = records
        return self._envelope

    def _due(self, lower: Frontier) -> _Due | None:
        """Return the next step; None if nothing more is bound, or nothing that covers the snapshot."""
        remap = self._remap.remap
        if lower == MINIMUM and not self._by_range:
            assert self._snapshot is not None
            first = remap.first_covering(self._snapshot)
            if first is None:
                return None
            whole, upper = Slice(first.time, NOTHING_READ, first.offsets), Frontier(first.time + 1)
            return _Due((whole,), upper, again=self._begun > MINIMUM)
        upper = self._begun if lower < self._begun < remap.upper else remap.upper
        if upper <= lower:
            return None
        slices = remap.slices(lower, upper)
        most = 1 if self._settle().by_binding else self._slices_max
        if most is not None and len(slices) > most:
            upper, slices = Frontier(slices[most].time), slices[:most]
        return _Due(slices, upper, again=upper <= self._begun)

    async def _make(self, lower: Frontier) -> tuple[list[Staged], Frontier] | None:
        """Stage the next step, or as much of it as upstream does not refuse; return it, and the upper that it has.

        None if nothing is due.
        """
        while (due := self._due(lower)) is not None:
            self._begun = max(self._begun, due.upper, key=_progress)
            try:
                staged = [await self._stage(due.slices, lower, due.upper, again=due.again)] if due.slices else []
            except SourceError:
                if len(due.slices) == 1:
                    raise
                self._slices_max = len(due.slices) // 2
                continue
            if self._slices_max is not None:  # it was not refused: the next step may take more
                self._slices_max = None if due.upper == self._remap.remap.upper else 2 * self._slices_max
            return staged, due.upper
        return None

    async def _stage(self, slices: Sequence[Slice], lower: Frontier, upper: Frontier, *, again: bool) -> Staged:
        """Read and write a batch; if it has errors once more, to say where they are (the ok rows are the same).

        Both passes are of one batch, so its records are counted once.  The second also tells input that is damaged from
        a failure to read it.
        """
        try:
            staged = await self._read(slices, lower, upper, locate=False)
        except CorruptionError:
            return await self._read(slices, lower, upper, locate=True)
        self._status = replace(
            self._status,
            read_records=self._status.read_records + staged.rows,
            reread_records=self._status.reread_records + (staged.rows if again else 0),
        )
        if not staged.errors:
            return staged
        await self._engine.discard(staged)
        return await self._read(slices, lower, upper, locate=True)

    async def _read(self, slices: Sequence[Slice], lower: Frontier, upper: Frontier, *, locate: bool) -> Staged:
        records = await self._reader.read(slices, table=self.table, locate=locate)
        envelope = self._settle()
        rows = await envelope.updates(records, slices, lower, located=locate)
        request = _request(self._data, self._schema, lower, upper)
        staged = await self._engine.stage(
            rows,
            structs.replace(request, small=self._reader.likely_small(slices), normalised=envelope.settled),
        )
        if isinstance(self._reader, ConfirmsReads):
            try:
                await self._reader.confirm()
            except (SourceError, Unavailable):
                await self._engine.discard(staged)
                raise
        return staged

    async def _append(self, staged: list[Staged], lower: Frontier, upper: Frontier) -> Stepped:
        match await self._data.compare_and_append(staged, lower, upper):
            case Appended():
                self._by_range = True
                self._status = replace(
                    self._status,
                    durable_records=self._status.durable_records + sum(batch.rows for batch in staged),
                    error_records=self._status.error_records + sum(batch.errors for batch in staged),
                    steps=self._status.steps + 1,
                    stalled="",
                    added=(),
                )
            case UpperMismatch():  # another instance made these times durable: ours are not needed
                await self._discard(staged)
            case Fenced() as outcome:  # the parts are left alone: a zombie may not know all that it has appended
                raise fenced(self._data.shard, outcome, self._data.epoch)
        return Advanced(self.upper)

    async def _discard(self, staged: Sequence[Staged]) -> None:
        for batch in staged:
            await self._engine.discard(batch)

    def _rest(self) -> Idle:
        self._status = replace(self._status, stalled="", added=())
        return Idle()

    def _stall(self, error: SourceError | Unavailable) -> Stalled:
        added = error.columns if isinstance(error, ColumnsAdded) else ()
        self._status = replace(self._status, stalled=reason(error), added=added)
        return Stalled(error)


def _progress(frontier: Frontier) -> tuple[bool, int]:
    """A sort key in the order of frontiers."""
    return frontier.empty, as_time(frontier)


async def withdraw(
    errors: Rows, time: int, schema: Schema, data: WriteHandle, remap: RemapShard, engine: Engine
) -> None:
    """Bind ``time`` to nothing new, and withdraw ``errors``, rows of the err half of ``data``, at it.

    All that is bound before must be durable already.  Raises as `Steps.dismiss`.
    """
    await remap.mint(time, NOTHING_READ)
    lower, upper = data.state.upper, Frontier(time + 1)
    if not lower < upper or remap.remap.slices(lower, upper):
        raise Unavailable(f"another instance has bound messages by {time}, or made it durable; ask again")
    left = await engine.union(schema, [errors], advance=time, negate=[True])
    staged = await engine.stage(left, _request(data, schema, lower, upper))
    match await data.compare_and_append([staged], lower, upper):
        case Appended():
            return
        case UpperMismatch():
            await engine.discard(staged)
            raise Unavailable(f"another instance has appended to shard {data.shard!r} meanwhile; ask again")
        case Fenced() as outcome:
            raise fenced(data.shard, outcome, data.epoch)


def _request(data: WriteHandle, schema: Schema, lower: Frontier, upper: Frontier) -> StageRequest:
    return StageRequest(
        data.shard,
        schema,
        as_time(lower),
        as_time(upper),
        data.stage_prefix(),
        sort=data.state.sort,
        small=True,
        inline_bytes_max=data.inline_room,
    )
