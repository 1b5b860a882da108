"""Resumption: what upstream may forget, and where a restart goes on.

The *timestamp resumption frontier* is the meet of the uppers of all shards of a source: of every output and of the
remap.  Inverted through the remap it is the *offset resumption frontier*: the binding of its predecessor, so all that
it covers is durable in each output.  It is computed from uppers that were read just now, at the start and then at
ticks, about once a second: reading them is metadata only.  A restart computes it again, from the uppers and never
from what upstream remembers; so a commit upstream may be late or never come.

An output that has nothing yet holds all of it back: upstream keeps what the output's first step will need.

All outputs means: of the newest epoch.  An instance that was taken over may not know an output that its successor
feeds, so it commits nothing more: the successor admits its epoch to every shard before it begins, and uppers of its
time are read with its epoch beside them.  Under one epoch every instance has the same outputs; a process may add
one if it ends the ingestion without it first.

Law R4 is asserted before each commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from strandline.errors import CorruptionError, SourceError, Unavailable, reason
from strandline.frontier.antichain import MINIMUM, Frontier, meet
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.write import WriteHandle
from strandline.sources.invariants import forgets_only_durable
from strandline.sources.question import Question
from strandline.sources.reader import SourceReader
from strandline.sources.reclock import NOTHING_READ
from strandline.sources.remap import RemapShard
from strandline.store.clock import Clock

PERIOD_MS: Final = 900
"""The least time between two looks: less than the usual interval of ticks, which make them, so that each has one."""


class ResumptionFrontier:
    """The resumption frontier of one source, as last computed."""

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
