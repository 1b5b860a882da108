"""Ingestion: one source's messages into its outputs' shards, each once, at the time that the remap gives it.

There are two independent activities.  A *tick* asks upstream how far it could be read now and binds the tick's time to
the answer, durably.  A *step* (`sources/steps.py`) makes the bound messages durable, in each output by itself.

Only two commits are made, in this order: the remap, then the data.  Everything else (what is committed upstream, the
counters) is derived from the uppers of the shards, afresh on every start, and may be late (`ResumptionFrontier`).  So
after a crash between any two instructions, at most the messages that were bound and not durable are read once more;
that is counted.

An upstream that does not answer, or broke its promise, stalls the source: nothing wrong is bound or appended.

Laws: `sources/remap.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

from strandline.algebra.schema import Column
from strandline.errors import CorruptionError, SourceError, Unavailable, reason
from strandline.frontier import MINIMUM, Frontier, Offsets, as_time, meet
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.write import WriteHandle
from strandline.plane import Engine
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, ReportsSnapshots, SnapshotProgress, TakesBounds
from strandline.sources.question import PATIENT, Patience, Question
from strandline.sources.reader import ColumnsAdded, SourceReader
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard, forgets_only_durable
from strandline.sources.status import Status
from strandline.sources.steps import Advanced, Idle, OutputShard, Stalled, Stepped, Steps
from strandline.store.clock import Clock

PERIOD_MS: Final = 900
"""The least time between two looks: less than the usual interval of ticks, which make them, so that each has one."""


class ResumptionFrontier:
    """The resumption frontier of one source, as last computed.

    It says what upstream may forget, and where a restart continues.

    The *timestamp resumption frontier* is the meet of the uppers of all shards of a source: of every output and of the
    remap.  Inverted through the remap it is the *offset resumption frontier*: the binding of its predecessor, so all
    that it covers is durable in each output.  It is computed from uppers that were just read, at the start and then at
    ticks, about once a second; this reads metadata only.  A restart computes it again from the uppers, never from what
    upstream remembers; so a commit upstream may be late or never come.

    An output that is still empty holds all of it back: upstream keeps what the output's first step will need.

    All outputs means: of the newest epoch.  An instance that was taken over may not know an output that its successor
    feeds, so it commits nothing more: the successor admits its epoch to every shard before it begins, and the uppers
    are read together with their epoch.  Under one epoch every instance has the same outputs; a process may add one if
    it ends the ingestion without it first.

    Law R4 is asserted before each commit.
    """

    def __init__(
        self,
        clock: Clock,
        reader: SourceReader,
        remap: RemapShard,
        data: Sequence[WriteHandle],
        upstream: Question,
    ) -> None:
        self._upstream = upstream
        self._clock = clock
        self._reader = reader
        self._remap = remap
        self._data = data
        self._told_ms: int | None = None
        self._telling = False
        self.offsets = NOTHING_READ
        """What upstream was last told."""
        self.problem = ""
        """Why it could not be told, else empty."""

    async def follow(self, *, wait: bool = False) -> None:
        """`advance` if `PERIOD_MS` have passed since the last time, or the clock was set back."""
        rested = self._told_ms is None or not 0 <= self._clock.now_ms() - self._told_ms < PERIOD_MS
        if rested and not self._telling:  # outputs that step side by side come here while upstream is being told
            await self.advance(wait=wait)

    async def advance(self, *, wait: bool = False) -> None:
        """Read the uppers, and let upstream forget what all outputs have; ``wait`` for its answer.

        Raises:
            CorruptionError: the shards do not fit each other, so one of them is not what was committed.
            FencedError: a newer epoch has taken over.
        """
        self._told_ms, self._telling = self._clock.now_ms(), True
        try:
            await self._advance(wait=wait)
        finally:
            self._telling = False

    async def _advance(self, *, wait: bool) -> None:
        durable = await self._durable()
        remap = self._remap.remap
        resume = remap.resume([durable])
        assert forgets_only_durable(resume, remap, durable), f"law R4: {resume} is not durable at {durable}"
        try:
            await self._upstream.tell("what it may forget", partial(self._tell, resume, durable), wait=wait)
        except (SourceError, Unavailable) as error:
            self.problem, self._told_ms = reason(error), None  # the next chance is as good as any

    async def _tell(self, resume: Offsets, durable: Frontier) -> None:
        await self._reader.commit(resume)
        self.offsets, self.problem = resume, ""
        self._remap.compact(durable)

    def forget(self) -> None:
        """Let the remap forget, in memory, the times of what is known to be durable: no I/O."""
        self._remap.compact(self._meet())

    async def _durable(self) -> Frontier:
        """Return the timestamp resumption frontier."""
        for data in self._data:
            await data.refresh()  # before the remap, so that the remap cannot seem to be behind
        await self._remap.refresh()
        while behind := self._behind():  # another instance went on, and forgot, between the two
            before = [data.state.upper for data in behind]
            for data in behind:
                await data.refresh()
            if [data.state.upper for data in behind] == before:
                break
            await self._remap.refresh()
        self._remap.refuse_fenced()
        for data in self._data:
            data.refuse_fenced()
            self._check(data.shard, data.state.upper)
        return self._meet()

    def _behind(self) -> list[WriteHandle]:
        since = self._remap.remap.since
        return [data for data in self._data if MINIMUM < data.state.upper <= since]

    def _meet(self) -> Frontier:
        return meet([self._remap.remap.upper, *(data.state.upper for data in self._data)])

    def _check(self, shard: str, upper: Frontier) -> None:
        """Refuse shards that cannot have come to be: since ≤ upper − 1, and what is durable was bound before."""
        remap = self._remap.remap
        if not upper <= remap.upper:
            what = f"is bound up to {remap.upper} only"
        elif MINIMUM < upper <= remap.since:
            what = f"is compacted to {remap.since} already"
        else:
            return
        raise CorruptionError(
            f"shard {shard!r} is durable up to {upper} and its remap {self._remap.shard!r} {what}; "
            "one of them was restored from another moment"
        )


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
