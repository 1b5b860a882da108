"""Compaction of one shard: the writer whose commit makes a merge due carries it out.

`Compactor.keep_up` is maintenance (`persist/shard/machine.py`): it runs after a commit and carries out the merges that
`trace.due` returns, until none is due.  A merge that fails is still due at the next commit.

A large merge takes seconds, and a commit should not.  If ``apart`` is set, `keep_up` skips large merges, and the
environment calls `catch_up` between commits or concurrently with them.  That is safe: the output replaces the inputs
only if all of them are still in the trace unchanged, whatever was committed meanwhile.

Output that is written and refused is deleted at once.  If the outcome of the commit is unknown, the output is kept,
because the shard may name it.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Final

from strandline.algebra.schema import Schema
from strandline.errors import StoreError, StrandlineError
from strandline.frontier import MINIMUM, TIME_MAX, Frontier, as_time
from strandline.persist.handles.contents import Contents, Half, Merger, StageRequest
from strandline.persist.shard.batch import NOTHING, Batch, BlobPart, Staged
from strandline.persist.shard.evolution import parse_schema
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.trace import Merge, MergeOutcome, Plan, Stale, apply_merge, due, everything
from strandline.store.protocols import Blob

MERGES_MAX: Final = 32
"""How many merges one commit carries out at most: more are due only after upkeep has failed for long."""
UNNAMED: Final = Schema(())
"""The schema of parts that only their own codec can read."""


class Compactor:
    """Keeps the trace of one shard short.  ``merger`` can rewrite the shard's parts; without one nothing is done.

    ``apart``: large merges are carried out by `catch_up` alone.
    """

    def __init__(self, machine: Machine, blob: Blob, *, apart: bool = False) -> None:
        self._machine = machine
        self._blob = blob
        self._apart = apart
        self._looked_at: tuple[tuple[Batch, ...], Frontier] = ((), MINIMUM)
        self.merger: Merger | None = None

    async def keep_up(self) -> bool:
        """Carry out the merges that are due.  Raises what reading the parts, rewriting them and committing raise."""
        batches, since = self._looked_at
        state = self._machine.state
        if self.merger is not None and not (state.since == since and _alike(batches, state.batches)):
            await self._carry_out_due(small=self._apart)
        return True

    async def catch_up(self) -> bool:
        """Carry out the merges that are due, large ones too; return whether there were any.  Raises as `keep_up`."""
        return self.merger is not None and await self._carry_out_due(small=False)

    async def _carry_out_due(self, *, small: bool) -> bool:
        for done in range(MERGES_MAX):
            plan = due(self._machine.state, small=small)
            if plan is None:
                self._looked_at = (self._machine.state.batches, self._machine.state.since)
                return done > 0
            await self.carry_out(plan)
        return True

    async def whole(self) -> MergeOutcome | None:
        """Merge everything into one batch at since, on an operator's request; None if there is nothing to do.

        Raises what reading the parts and committing raise.
        """
        plan = everything(await self._machine.refresh())
        return None if plan is None else await self.carry_out(plan)

    async def carry_out(self, plan: Plan) -> MergeOutcome:
        """Rewrite the plan's inputs and put the result in their place.

        Raises:
            CorruptionError: an input is damaged, or the result does not add up; the shard is as it was.
            Indeterminate: the result may be in the shard, or may still land.
            Unavailable: the result is not in the shard, and never will be.
        """
        output = await self._rewritten(plan)
        merge = Merge(plan.inputs, output)
        doubted = False

        def doubt() -> None:
            nonlocal doubted
            doubted = True

        try:
            outcome = await self._machine.commit(lambda state: apply_merge(state, merge), in_doubt=doubt)
        except StrandlineError:
            if not doubted:
                await self._discard(output)
            raise
        if isinstance(outcome, Stale):
            # In doubt, it may have landed and been merged again since: a reader may be reading that version.
            if not doubted:
                await self._discard(output)
        else:
            self._machine.metrics.compactions += 1
            self._machine.metrics.large_compactions += plan.large
        return outcome

    async def _rewritten(self, plan: Plan) -> Staged:
        state, inputs, since = self._machine.state, plan.inputs, as_time(plan.since)
        lower, upper = inputs[0].lower, inputs[-1].upper
        if not any(batch.parts for batch in inputs):
            digest = sum((batch.digest for batch in inputs), NOTHING)
            return Staged(lower, upper, (), 0, 0, digest, plain=True, since=plan.since)
        assert self.merger is not None, f"shard {state.shard!r} has no merger that can rewrite its parts"
        schema = parse_schema(state.schema) or UNNAMED
        contents = Contents(state.shard, schema, inputs, 0, TIME_MAX, since, Half.BOTH, seqno=state.seqno)
        request = StageRequest(
            state.shard,
            schema,
            as_time(lower),
            as_time(upper),
            self._machine.fresh_prefix(),
            sort=state.sort,
            small=True,
            inline_bytes_max=plan.inline_bytes_max,
        )
        return await self.merger.merge(contents, request)

    async def _discard(self, staged: Staged) -> None:
        for part in staged.parts:
            if isinstance(part, BlobPart):
                for key in filter(None, (part.key, part.sidecar)):
                    with suppress(StoreError):  # named by nothing: the leak audit finds it
                        await self._blob.delete(key)


def _alike(before: tuple[Batch, ...], after: tuple[Batch, ...]) -> bool:
    """Tell whether one trace is the other, but for how far an empty batch at its end reaches: no merge depends on that.

    So a shard that only moves its upper, as most do at most ticks, is not looked at again.
    """
    if before is after:
        return True
    empty_ends = len(before) == len(after) > 0 == before[-1].rows == after[-1].rows
    return empty_ends and all(map(operator.is_, before[:-1], after[:-1]))
