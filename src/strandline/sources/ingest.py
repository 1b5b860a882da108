"""Ingestion: one source's messages into its shard, each once, at the time that the remap gives it.

Two things happen, apart.  A *tick* asks upstream how far it could be read now and binds the tick's time to the
answer, durably.  A *step* takes all bindings whose data are not durable yet, reads exactly their messages in one job
and appends them at their times.  How ticks are grouped into steps does not change a single update (law D).

Two commits only, in this order: the remap, then the data.  Everything else (what is committed upstream, the counters)
is derived from the uppers of the two shards, afresh on every start, and may be late.  So a crash between any two
instructions costs at most one reading again of what was bound and not durable; that is counted
(`Status.reread_records`).

An upstream that does not answer, or broke its promise, stalls the source: its upper stays, nothing wrong is appended.
`Stalled` is a value, because other sources go on.  A newer epoch is an exception: stop.

Source: design page "sources" (ingestion step, resumption, details that cost others years).  Laws:
`sources/invariants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from msgspec import structs

from strandline.algebra.schema import Schema
from strandline.errors import CorruptionError, SourceError, Unavailable
from strandline.frontier.antichain import Frontier, as_time, meet
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.plane import Engine, Rows, StageRequest
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.sources.envelope import Append, Envelope, Retracting
from strandline.sources.invariants import forgets_only_durable
from strandline.sources.reader import SourceReader, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard


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


Ticked: TypeAlias = Advanced | Stalled
Stepped: TypeAlias = Advanced | Idle | Stalled


@dataclass(frozen=True, slots=True)
class Status:
    """What this incarnation did.

    ``read_records``: rows it staged, of both halves.  ``reread_records``: those of them at times whose reading may
    have begun before (bound before this incarnation opened, or in a step of its own that came to nothing).
    ``error_records``: rows of the err half it made durable.  ``stalled``: why the last tick or step came to nothing,
    else empty.
    """

    read_records: int = 0
    reread_records: int = 0
    durable_records: int = 0
    error_records: int = 0
    steps: int = 0
    resume: Offsets = NOTHING_READ
    stalled: str = ""
    notices: tuple[str, ...] = ()


class Ingestion:
    """One source of one environment.  Opened by `open`; one coroutine at a time calls it."""

    def __init__(
        self, schema: Schema, reader: SourceReader, remap: RemapShard, data: WriteHandle, engine: Engine
    ) -> None:
        self._schema = schema
        self._reader = reader
        self._remap = remap
        self._data = data
        self._engine = engine
        self._envelope: Envelope = Retracting(schema, engine, data) if reader.records("") == TakenBack() else Append()
        self._begun = remap.remap.upper  # times before it may have been read already, by us or by the binding process
        self.status = Status()

    @classmethod
    async def open(
        cls, schema: Schema, reader: SourceReader, remap: RemapShard, data: WriteHandle, engine: Engine
    ) -> Ingestion:
        """Return the ingestion, at the frontier where the last incarnation left it; nothing is read yet.

        Raises `CorruptionError` if data are durable at times that were never bound: one of the shards is not what was
        committed.
        """
        upper = (await data.refresh()).upper  # before the remap, so that the remap cannot seem to be behind
        bound = (await remap.refresh()).upper
        if upper <= remap.remap.since:  # another instance made more durable in between, and forgot when that happened
            upper = (await data.refresh()).upper
        if not upper <= bound:
            raise CorruptionError(
                f"shard {data.shard!r} is durable up to {upper} and its remap {remap.shard!r} is bound up to {bound} "
                "only; one of them was restored from another moment"
            )
        opened = cls(schema, reader, remap, data, engine)
        await opened._release_upstream()
        return opened

    async def close(self) -> None:
        """End reading; what is bound and not durable is read by the next incarnation."""
        await self._reader.close()

    @property
    def upper(self) -> Frontier:
        """The durable upper of the source's data, as last seen."""
        return self._data.state.upper

    @property
    def bound(self) -> Frontier:
        """The first time that is not bound, as last seen."""
        return self._remap.remap.upper

    async def tick(self, time: int) -> Ticked:
        """Bind ``time`` to how far upstream could be read now; a time that is bound already stays as it is."""
        try:
            known = (await self._remap.refresh()).frontier  # before the probe, which then must not be behind it
            offsets = await self._reader.upstream_frontier()
            if not known <= offsets:
                raise SourceError(
                    f"upstream went back: {known.entries} was bound and it can be read up to {offsets.entries} only"
                )
        except (SourceError, Unavailable) as error:
            return self._stall(error)
        remap = await self._remap.mint(time, offsets)
        self.status = replace(self.status, stalled="", notices=self._reader.notices())
        return Advanced(remap.upper)

    async def step(self) -> Stepped:
        """Make durable what is bound and not durable yet, in one append.

        A step does not straddle what may have been read before: that comes first, by itself, so that it is counted to
        the record.  Where the envelope looks at what is held, a step takes one binding.

        Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: the append may have happened; the next step looks.
        """
        lower = (await self._data.refresh()).upper
        upper = self._remap.remap.upper
        if lower < self._begun < upper:
            upper = self._begun
        if upper <= lower:
            return Idle()
        slices = self._remap.remap.slices(lower, upper)
        if self._envelope.by_binding and len(slices) > 1:
            upper, slices = Frontier(slices[1].time), slices[:1]
        again = upper <= self._begun
        self._begun = max(self._begun, upper, key=_progress)
        try:
            staged = [await self._stage(slices, lower, upper, again=again)] if slices else []
        except (SourceError, Unavailable) as error:
            return self._stall(error)
        return await self._append(staged, lower, upper)

    async def catch_up(self) -> Stepped:
        """Step until all that is bound is durable, or nothing goes on."""
        while isinstance(outcome := await self.step(), Advanced):
            pass
        return outcome

    async def dismiss(self, errors: Rows, time: int) -> None:
        """Withdraw ``errors``, rows of the err half as they are held, at ``time``.

        An operator withdraws them, and no message of upstream does, so the time is bound to nothing new.  All that is
        bound must be durable already (`catch_up`).

        Raises:
            Unavailable: another instance went on meanwhile; nothing was withdrawn.
            FencedError: a newer epoch has taken over.
            Indeterminate: they may be withdrawn; look before you ask again.
        """
        lower, upper = self.upper, Frontier(time + 1)
        remap = await self._remap.mint(time, NOTHING_READ)
        if remap.slices(lower, upper):
            raise Unavailable(f"another instance has bound messages by {time}; ask again")
        left = await self._engine.union(self._schema, [errors], advance=time, negate=[True])
        staged = await self._engine.stage(left, self._request(lower, upper))
        match await self._data.compare_and_append([staged], lower, upper):
            case Appended():
                await self._release_upstream()
            case UpperMismatch():
                await self._discard([staged])
                raise Unavailable(f"another instance has appended to shard {self._data.shard!r} meanwhile; ask again")
            case Fenced() as outcome:
                raise fenced(self._data.shard, outcome, self._data.epoch)

    async def _stage(self, slices: Sequence[Slice], lower: Frontier, upper: Frontier, *, again: bool) -> Staged:
        """Read and write a batch; if it has errors once more, to say where they are (the ok rows are the same).

        Both passes are of one batch, so its records are counted once.  The second also tells input that is damaged from
        a failure to read it.
        """
        try:
            staged = await self._read(slices, lower, upper, locate=False)
        except CorruptionError:
            return await self._read(slices, lower, upper, locate=True)
        self.status = replace(
            self.status,
            read_records=self.status.read_records + staged.rows,
            reread_records=self.status.reread_records + (staged.rows if again else 0),
        )
        if not staged.errors:
            return staged
        await self._engine.discard(staged)
        return await self._read(slices, lower, upper, locate=True)

    async def _read(self, slices: Sequence[Slice], lower: Frontier, upper: Frontier, *, locate: bool) -> Staged:
        records = await self._reader.read(slices, table="", locate=locate)
        rows = await self._envelope.updates(records, slices, lower, located=locate)
        request = self._request(lower, upper)
        return await self._engine.stage(
            rows, structs.replace(request, small=self._reader.likely_small(slices), normalised=True)
        )

    def _request(self, lower: Frontier, upper: Frontier) -> StageRequest:
        return StageRequest(
            self._data.shard,
            self._schema,
            as_time(lower),
            as_time(upper),
            self._data.stage_prefix(),
            small=True,
            inline_bytes_max=self._data.inline_room,
        )

    async def _append(self, staged: list[Staged], lower: Frontier, upper: Frontier) -> Stepped:
        match await self._data.compare_and_append(staged, lower, upper):
            case Appended():
                self.status = replace(
                    self.status,
                    durable_records=self.status.durable_records + sum(batch.rows for batch in staged),
                    error_records=self.status.error_records + sum(batch.errors for batch in staged),
                    steps=self.status.steps + 1,
                )
            case UpperMismatch():  # another instance made the very same updates durable: ours are not needed
                await self._discard(staged)
            case Fenced() as outcome:  # the parts are left alone: a zombie may not know all that it has appended
                raise fenced(self._data.shard, outcome, self._data.epoch)
        await self._release_upstream()
        return Advanced(self.upper)

    async def _discard(self, staged: Sequence[Staged]) -> None:
        for batch in staged:
            await self._engine.discard(batch)

    async def _release_upstream(self) -> None:
        """Commit upstream what is durable.  It may be late or never: a restart computes it again from the uppers."""
        remap = self._remap.remap
        durable = meet([self.upper, remap.upper])
        resume = remap.resume([durable])
        assert forgets_only_durable(resume, remap, durable), f"law R4: {resume} is not durable at {durable}"
        try:
            await self._reader.commit(resume)
        except (SourceError, Unavailable) as error:
            self._stall(error)
            return
        self.status = replace(self.status, resume=resume)
        self._remap.compact(durable)

    def _stall(self, error: SourceError | Unavailable) -> Stalled:
        self.status = replace(self.status, stalled=str(error), notices=self._reader.notices())
        return Stalled(error)


def _progress(frontier: Frontier) -> tuple[bool, int]:
    """A sort key in the order of frontiers."""
    return frontier.empty, as_time(frontier)
