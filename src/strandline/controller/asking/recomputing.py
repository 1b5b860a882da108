"""Recomputing one stage of a view: what its shard must hold at a time, by its full plan over what its inputs held then.

A stage is compared over its own inputs, be they right or wrong.  So what is found wrong is wrong in this stage, and not
in one that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.compute.afresh import Halves, computed
from strandline.compute.stage import Stage
from strandline.controller.asking.reads import complete, latest, shown_at, updates
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.items import View
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.batch import INLINE_PART_BYTES_MAX, Digest
from strandline.persist.shard.objects import parts_prefix
from strandline.plane.reading import SIGNIFICANT_DIGITS, Differences


@dataclass(frozen=True)
class Recomputed:
    """A stage of a view: its shard, and the collections that it reads, by the names that it knows."""

    core: Core
    view: View
    stage: Stage
    own: ReadHandle
    inputs: Mapping[str, ReadHandle]

    @property
    def name(self) -> str:
        """What an operator knows it as."""
        return self.own.name

    async def latest(self) -> int:
        """Return the latest time at which its shard can be compared.  Raises `AsOfError` if there is none."""
        return await latest(self.core, [self.own])

    async def compare(self, time: int) -> Differences:
        """Return in which rows the shard differs at ``time`` from what it must hold.

        Raises `AsOfError` if that cannot be read then.
        """
        _, wanted = await self._wanted(time)
        stored = await updates(self.core, self.own, time, Hold())
        both = await self.core.engine.union(self.stage.schema, [stored, wanted], advance=time, negate=[False, True])
        return await self.core.engine.differences(both, self.stage.schema, significant=SIGNIFICANT_DIGITS)

    async def digest(self, time: int) -> Digest:
        """Return the digest of the rows that the shard must hold at ``time``.  Raises as `compare`."""
        origin, wanted = await self._wanted(time)
        now, fresh = self.core.client.clock.now_ms(), self.core.client.ids.fresh("b")
        request = StageRequest(
            shard=self.own.state.shard,
            schema=self.stage.schema,
            lower=origin,
            upper=origin + 1,
            prefix=f"{parts_prefix(self.own.state.shard)}{now}-{fresh}/",  # the shard's collector removes what is left
            inline_bytes_max=INLINE_PART_BYTES_MAX,
        )
        staged = await self.core.engine.stage(wanted, request)
        await self.core.engine.discard(staged)
        return staged.digest

    async def _wanted(self, time: int) -> tuple[int, Rows]:
        """Return the rows that it must hold at ``time``, as insertions at a time of its inputs, and that time."""
        state = await self.own.refresh()
        known = min(time, await complete(self.inputs.values())) if self.inputs else time
        known = shown_at(self.view, state, known)
        read = {n: Halves(await updates(self.core, h, known, Hold(), net=True)) for n, h in self.inputs.items()}
        return known, (await computed(self.core.engine, self.stage, read, time=known)).ok


async def recomputed(core: Core, instance: str, shard: str) -> Recomputed | None:
    """Return the stage whose shard is ``shard``, of a view in ``instance``; None if no view has it now."""
    items = core.catalog.items.values()
    for view in [item for item in items if isinstance(item, View) and item.instance == instance]:
        known = core.require_writing().plans.get(view)
        if known is None or shard not in view.shards:
            continue
        final = known.stages[-1].name
        shards = {**view.stages, final: view.shard}
        for stage in [each for each in known.stages if shards.get(each.name) == shard]:
            handles: dict[str, ReadHandle] = {}
            for each in [each for each in known.stages if each.name in {stage.name, *stage.inputs}]:
                shown = view.name if each.name == final else f"{view.name}/{each.name}"
                handle = await core.client.reader(shards[each.name], each.schema, shown)
                if handle is None:
                    return None
                handles[each.name] = handle
            own = handles.pop(stage.name)
            outside = [name for name in stage.inputs if name not in handles]
            read = {name: await core.readers.of(view.reads[name]) for name in outside}
            return Recomputed(core, view, stage, own, handles | read)
    return None
