"""Ingestion: one source's messages into its outputs' shards, each once, at the time that the remap gives it.

Two things happen, apart.  A *tick* asks upstream how far it could be read now and binds the tick's time to the answer,
durably.  A *step* (`sources/steps.py`) makes what is bound durable, in each output by itself.

Two commits only, in this order: the remap, then the data.  Everything else (what is committed upstream, the counters)
is derived from the uppers of the shards, afresh on every start, and may be late (`sources/resume.py`).  So a crash
between any two instructions costs at most one reading again of what was bound and not durable; that is counted.

An upstream that does not answer, or broke its promise, stalls the source: nothing wrong is bound or appended.

Laws: `sources/invariants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

from strandline.algebra.schema import Column
from strandline.errors import SourceError, Unavailable, reason
from strandline.frontier.antichain import Frontier, as_time, meet
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane.engine import Engine
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, ReportsSnapshots, SnapshotProgress, TakesBounds
from strandline.sources.question import PATIENT, Patience, Question
from strandline.sources.reader import ColumnsAdded, SourceReader
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard
from strandline.sources.resume import ResumptionFrontier
from strandline.sources.status import Status
from strandline.sources.steps import Advanced, Idle, OutputShard, Stalled, Stepped, Steps
from strandline.store.clock import Clock

Ticked: TypeAlias = Advanced | Stalled
BACK: Final = Problem(
    "upstream-went-back",
    "upstream went back: {known} was bound and it can be read up to {there} only",
    Stopped.SOURCE,
    (Way("bring upstream to where it was"), ANEW),
)


class Ingestion:
    """One source of one environment.  Opened by `open`.

    One coroutine at a time calls it; but outputs may be made to catch up side by side.
    """

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        reader: SourceReader,
        remap: RemapShard,
        outputs: Sequence[OutputShard],
        patience: Patience,
        name: str,
    ) -> None:
        """``name``: the source's, for what messages advise."""
        self._name = name
        self._reader = reader
        self._remap = remap
        self._upstream = Question(clock, patience)
        self._steps = {each.table: Steps(each, reader, remap, engine) for each in outputs}
        self._resumption = ResumptionFrontier(clock, reader, remap, [each.data for each in outputs], self._upstream)
        self._stalled = ""
        self._added: dict[str, tuple[Column, ...]] = {}  # the columns that kept the last tick from binding

    @classmethod
    async def open(
        cls,
        clock: Clock,
        engine: Engine,
        reader: SourceReader,
        remap: RemapShard,
        outputs: Sequence[OutputShard],
        patience: Patience = PATIENT,
        *,
        name: str,
    ) -> Ingestion:
        """Return the ingestion, at the frontier where the last incarnation left it; nothing is read yet.

        Raises:
            CorruptionError: the shards do not fit each other, so one of them is not what was committed.
            FencedError: a newer epoch has taken over.
        """
        opened = cls(clock, engine, reader, remap, outputs, patience, name)
        await opened._resumption.advance()
        return opened

    async def close(self) -> None:
        """End reading; what is bound and not durable is read by the next incarnation."""
        await self._upstream.close()
        await self._reader.close()

    @property
    def tables(self) -> tuple[str, ...]:
        """What upstream calls the outputs."""
        return tuple(self._steps)

    @property
    def upper(self) -> Frontier:
        """What is durable in all outputs, as last seen."""
        return meet(steps.upper for steps in self._steps.values())

    @property
    def bound(self) -> Frontier:
        """The first time that is not bound, as last seen."""
        return self._remap.remap.upper

    @property
    def needed(self) -> Frontier:
        """The time that the remap must stay readable at: one step below what is durable in all outputs."""
        return Frontier(max(0, as_time(meet([self.upper, self.bound])) - 1))

    @property
    def status(self) -> Status:
        """What this incarnation did, and how it stands."""
        outputs = {table: steps.status for table, steps in self._steps.items()}
        reasons = (self._stalled, *(each.stalled for each in outputs.values()), self._resumption.problem)
        stalled = next(filter(None, reasons), "")
        bound, resume = self._remap.remap.frontier, self._resumption.offsets
        added = self._added | {table: each.added for table, each in outputs.items() if each.added}
        return Status(outputs, self.bound, resume, stalled, self._reader.notices(), bound, added)

    def snapshots(self) -> dict[str, SnapshotProgress]:
        """How far the snapshots are that are read now, by table, where the reader can say so."""
        found = self._reader.snapshots() if isinstance(self._reader, ReportsSnapshots) else ()
        return {each.table: each for each in found}

    def upper_of(self, table: str) -> Frontier:
        """Return what is durable in one output, as last seen."""
        return self._steps[table].upper

    async def tick(self, time: int, *, wait: bool = False) -> Ticked:
        """Bind ``time`` to how far upstream can be read; a time that is bound already stays as it is.

        Upstream is asked beside the tick (`sources/question.py`): if it does not answer within an interval, nothing is
        bound now, and a later tick binds its answer.  ``wait``: this tick, however long that takes.
        """
        try:
            known = (await self._remap.refresh()).frontier
            covered = await self._upstream.ask("how far it can be read", partial(self._probe, known), wait=wait)
        except Unavailable as error:
            self._stalled, self._added = reason(error), {}
            return Stalled(error)
        except SourceError as error:
            self._stalled = reason(error)
            self._added = {error.table: error.columns} if isinstance(error, ColumnsAdded) else {}
            # The reader may not know what another process has made durable meanwhile, and miss what upstream forgot.
            await self._resumption.follow(wait=wait)
            return Stalled(error)
        remap = await self._remap.mint(time, covered)
        self._stalled, self._added = "", {}
        await self._resumption.follow(wait=wait)
        return Advanced(remap.upper)

    async def idle(self) -> bool:
        """Return whether all that upstream has is durable, and nothing stands still: a tick would bind nothing new.

        False if upstream does not say so within an interval.
        """
        if self.status.stalled or self.upper != self.bound:
            return False
        try:
            known = self._remap.remap.frontier
            return await self._upstream.ask("how far it can be read", partial(self._probe, known), wait=False) == known
        except (SourceError, Unavailable):
            return False

    async def _probe(self, known: Offsets) -> Offsets:
        """Return how far upstream can be read now, which must not be behind what is ``known`` to be bound.

        What an output begins with, a snapshot, is covered by the answer: it is taken before upstream is asked.
        """
        begun = [await steps.begin() for steps in self._steps.values()]
        if isinstance(self._reader, TakesBounds):
            self._reader.bound(known)
        offsets = await self._reader.upstream_frontier()
        if not known <= offsets:
            raise SourceError(BACK.said(known=known.entries, there=offsets.entries, item=self._name))
        return _joined([offsets, *begun])

    async def step(self, table: str = "") -> Stepped:
        """Make durable what is bound and not durable yet in one output; see `Steps.step`.

        Nothing is read from an upstream that does not answer: that would wait, too.
        """
        if silence := self._upstream.silence:
            return Stalled(Unavailable(silence))
        outcome = await self._steps[table].step()
        if isinstance(outcome, Advanced):
            self._resumption.forget()
            await self._resumption.follow()
        return outcome

    async def catch_up(self, table: str = "") -> Idle | Stalled:
        """Step an output until all that is bound is durable, or nothing goes on."""
        while True:
            outcome = await self.step(table)
            if not isinstance(outcome, Advanced):
                return outcome

    async def dismiss(self, errors: Rows, time: int, table: str = "") -> None:
        """Withdraw ``errors``, rows of an output's err half as they are held, at ``time``.

        An operator withdraws them, and no message of upstream does, so the time is bound to nothing new.  All that is
        bound must be durable already (`catch_up`).  Raises what `Steps.dismiss` raises.
        """
        await self._steps[table].dismiss(errors, time)


def _joined(all_of: Sequence[Offsets]) -> Offsets:
    """Return the least offsets that cover all that some of these cover."""
    covered = NOTHING_READ
    for offsets in all_of:
        covered = covered.join(offsets)
    return covered
