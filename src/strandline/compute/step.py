"""One step of one stage: from its inputs' updates to its shard's, exact at every time inside the window.

A step over ``[lower, upper)`` reads, of each input, its updates in the window (Δ) and where the rule wants them its
contents before (old) or both (new), old times advanced to ``lower``.  The rule's plan says which; frames that no rule
asks for are not read.  The result is handed to the stage's sink.  Nothing changed and nothing owed: no job, the upper
moves by an empty append (`quiet` tells, so that a tick can do many of those at once).

A fresh shard starts at ``as_of``, the last time that all inputs know: its first window begins there and holds
everything before it, advanced.

Source: design page "compute" (a step: advance a dataflow from `lower` to `upper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from strandline.algebra.nodes import Node, frames
from strandline.compute.delta.phase import Phase, Window, source
from strandline.compute.sink.actor import Sink
from strandline.compute.stage import Stage, delta_plan, full_plan
from strandline.frontier.antichain import Frontier, as_time, meet
from strandline.persist.plane import Engine, Rows
from strandline.persist.read import ReadHandle, contents

SMALL_ROWS_MAX: Final = 20_000
"""A window with fewer input updates than this is likely to give a result that fits in one small part."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did: how many input updates it read, or that it had to recompute everything (``audited``)."""

    rows_read: int
    audited: bool


class StageRun:
    """A stage with its inputs and its sink, in this process."""

    def __init__(self, stage: Stage, engine: Engine, inputs: Mapping[str, ReadHandle], sink: Sink) -> None:
        self.stage = stage
        self.sink = sink
        self._engine = engine
        self._inputs = inputs

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the collections and stages it reads."""
        return tuple(self._inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The shards of `inputs`."""
        return tuple(reader.state.shard for reader in self._inputs.values())

    @property
    def needed(self) -> Frontier:
        """The time from which on its inputs, and its own shard, must stay readable.

        One step below where its next window begins: a time of its inputs is told from earlier ones only there.
        """
        begins = [self.sink.writer.state.upper] if not self.sink.fresh else [self.known()]
        begins += [] if self.sink.desired is None else [Frontier(self.sink.desired)]
        return Frontier(max(0, as_time(meet(begins)) - 1))

    def known(self) -> Frontier:
        """How far all inputs are known (as last seen here)."""
        return meet(reader.state.upper for reader in self._inputs.values())

    def quiet(self, upper: Frontier, quiet_inputs: frozenset[str]) -> bool:
        """Tell, by metadata alone, that nothing changes up to ``upper`` but the upper itself.

        ``quiet_inputs`` are stages that are themselves quiet up to ``upper`` and will be advanced there.
        """
        lower = self.sink.desired
        if not self.sink.known or lower is None or self.sink.fresh or self.sink.owes:
            return False
        if self.sink.writer.state.upper != Frontier(lower):
            return False
        for name, reader in self._inputs.items():
            if not (upper <= reader.state.upper or name in quiet_inputs):
                return False
            if _changes(reader, lower, as_time(upper)) > 0:
                return False
        return True

    def standing(self, upper: Frontier) -> str:
        """Say what keeps the shard before ``upper``; empty if it is there."""
        if upper <= self.sink.writer.state.upper:
            return ""
        behind = [f"{name!r} (upper {r.state.upper})" for name, r in self._inputs.items() if r.state.upper < upper]
        if behind:
            return f"it waits for {', '.join(behind)}"
        return f"it stands at {self.sink.writer.state.upper}, although all that it reads is known up to {upper}"

    def audit(self) -> None:
        """Forget what is believed of the shard: the next step recomputes it and appends the difference."""
        self.sink.desired = None

    async def step(self, upper: Frontier) -> Done | None:
        """Bring the shard up to ``upper``, or to where its inputs are known; None if there is nothing to do.

        A step that failed, or was cancelled, leaves nothing behind that the next one would trust.

        Raises:
            FencedError: a newer epoch has taken over.
            AsOfError: an input has let go of the past that the step needs.
            Exception: whatever a store or the engine raises; another step looks at the shard and tries again.
        """
        if not self.sink.known:
            await self.sink.open()
        upper = meet((upper, self.known()))
        audited = False
        if self.sink.desired is None or self.sink.fresh:
            if as_time(upper) == 0:
                return None  # some input knows nothing yet
            if self.sink.fresh:  # also where a first step came to nothing: the inputs have gone on since
                self._require(as_time(upper) - 1)
                await self.sink.start(as_time(upper) - 1)
            else:
                await self._audit(upper)
                audited = True
        await self.sink.look()
        lower = self.sink.desired
        assert lower is not None
        if upper <= Frontier(lower):
            if self.sink.owes and Frontier(lower) > self.sink.writer.state.upper:
                await self.sink.advance(None, Frontier(lower), small=True)
            return Done(0, audited) if audited else None
        self._require(lower if self.sink.fresh else lower - 1)
        delta, rows_read = await self._delta(lower, as_time(upper))
        await self.sink.advance(delta, upper, small=rows_read <= SMALL_ROWS_MAX)
        return Done(rows_read, audited)

    def _require(self, time: int) -> None:
        """Raise `AsOfError` if an input cannot tell ``time`` from earlier ones: what it holds would look new."""
        for reader in self._inputs.values():
            reader.require(max(0, time))

    async def _audit(self, upper: Frontier) -> None:
        at = min(as_time(upper), as_time(self.sink.writer.state.upper)) - 1
        await self.sink.audit(await self.recompute(at), at)

    async def recompute(self, at: int) -> Rows:
        """Return the desired contents at ``at``, computed anew from the inputs' contents: insertions at ``at``."""
        plan = full_plan(self.stage)
        read = {}
        for name in sorted(frames(plan)):
            contents_at = await self._inputs[name].snapshot(at, timeout_s=0)
            read[name] = await self._engine.read(replace(contents_at, net=True))
        return await self._engine.evaluate(plan, read, origin=at)

    async def _delta(self, lower: int, upper: int) -> tuple[Rows | None, int]:
        first = self.sink.fresh
        changes = {
            name: contents(reader.state, reader.schema, 0 if first else lower, upper, advance=lower)
            for name, reader in self._inputs.items()
        }
        changed = frozenset(name for name, each in changes.items() if each.rows)
        if first:
            times = [lower]
            assert upper == lower + 1, "the first window holds exactly the time that the shard starts at"
        else:
            found = [await self._engine.times(changes[name]) for name in sorted(changed)]
            times = sorted({time for each in found for time in each})
        origin = times[0] if times else lower
        rows_read = sum(each.rows for each in changes.values())
        relative = tuple(time - origin for time in times)
        plan = delta_plan(self.stage, Window(changed, relative, first=first, small=rows_read <= SMALL_ROWS_MAX))
        if plan is None:
            return None, rows_read
        read = await self._read(plan, lower, upper, origin, first=first)
        return await self._engine.evaluate(plan, read, origin=origin), rows_read

    async def _read(self, plan: Node, lower: int, upper: int, origin: int, *, first: bool) -> dict[str, Rows]:
        read: dict[str, Rows] = {}
        for name in sorted(frames(plan)):
            collection, phase = source(name)
            if collection == self.name:
                read[name] = await self.sink.prior()
                continue
            reader = self._inputs[collection]
            # In a first step nothing is old: whatever the phase, it is all there is.
            begin = lower if phase is Phase.DELTA and not first else 0
            end = lower if phase is Phase.OLD and not first else upper
            wanted = contents(reader.state, reader.schema, begin, end, advance=origin)
            # At the first time a row that came and went was never there: no expression may be evaluated on it.
            read[name] = await self._engine.read(replace(wanted, net=first))
        return read


def _changes(reader: ReadHandle, lower: int, upper: int) -> int:
    """Return how many updates the input may have in the window: 0 is certain."""
    return contents(reader.state, reader.schema, lower, upper, advance=lower).rows
