"""Bugs that are planted in sources with several outputs, to prove that their world sees them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.frontier import MINIMUM, Frontier, as_time, meet
from strandline.persist.shard.state import Appended
from strandline.sources import remap as binding
from strandline.sources import steps
from strandline.sources.ingest import ResumptionFrontier
from strandline.sources.reclock import NOTHING_READ, Remap, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Stepped, Steps

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


# ---- resumption ------------------------------------------------------------------------------------------------------


@bug(
    "upstream may forget the binding of the durable upper, and not of its predecessor", (ResumptionFrontier, "_advance")
)
async def resumed_at_the_upper(self: ResumptionFrontier, *, wait: bool) -> None:
    """Commit what is bound at the first time that is not durable."""
    durable = await self._durable()
    await self._reader.commit(self._remap.remap.offsets_at(as_time(durable)))


_durable_of_all = ResumptionFrontier._durable


@bug("the resumption frontier is that of one output", (ResumptionFrontier, "_durable"))
async def one_output_asked(self: ResumptionFrontier) -> Frontier:
    """Look at the first output alone."""
    await _durable_of_all(self)
    return meet([self._remap.remap.upper, *(data.state.upper for data in self._data[:1])])


@bug("an output that has nothing yet holds nothing back", (ResumptionFrontier, "_durable"))
async def beginners_left_out(self: ResumptionFrontier) -> Frontier:
    """Leave out the uppers at which nothing is durable."""
    await _durable_of_all(self)
    uppers = [data.state.upper for data in self._data if data.state.upper != MINIMUM]
    return meet([self._remap.remap.upper, *uppers]) if uppers else MINIMUM


@bug("the remap's upper counts as durable", (ResumptionFrontier, "_durable"))
async def bound_is_durable(self: ResumptionFrontier) -> Frontier:
    """Ask no output."""
    await _durable_of_all(self)
    return self._remap.remap.upper


# ---- steps -----------------------------------------------------------------------------------------------------------

_due = Steps._due
_step = Steps.step
_slices = Remap.slices


@bug("a snapshot is put at the newest binding, whether that covers it or not", (Steps, "_due"))
def snapshot_too_early(self: Steps, lower: Frontier) -> Any:
    """Read up to where the snapshot stands, at a time by which that had not happened."""
    bindings = self._remap.remap.bindings
    if lower != MINIMUM or self._by_range or not bindings:
        return _due(self, lower)
    whole = Slice(bindings[-1].time, NOTHING_READ, bindings[-1].offsets.join(self._snapshot))
    return steps._Due((whole,), Frontier(whole.time + 1), again=False)


@bug("the first step after a snapshot begins where the snapshot's binding begins", (Remap, "slices"))
def snapshot_overlapped(self: Remap, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
    """Read the last binding that is durable once more."""
    found = _slices(self, lower, upper)
    before = [b.offsets for b in self.bindings if b.time < as_time(lower)]
    return (replace(found[0], lower=before[-2]), *found[1:]) if found and len(before) > 1 else found


@bug("a binding that moves another partition only is passed over", (Remap, "slices"))
def other_partitions_dropped(self: Remap, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
    """Look at the first partition, to see whether there is anything to read."""
    return tuple(each for each in _slices(self, lower, upper) if each.lower["p"] < each.upper["p"])


@bug("a restart reads what is bound, and finds out at the append what was durable", (Steps, "step"))
async def upper_not_asked_at_start(self: Steps) -> Stepped:
    """Read, the first time, all that the remap knows."""
    if self.__dict__.setdefault("_fresh", True):
        self.__dict__["_fresh"] = False
        remap = self._remap.remap
        if remap.since != MINIMUM:
            known = _slices(remap, Frontier(as_time(remap.since) + 1), remap.upper)
            await self._reader.read(known, table=self.table, locate=False)
    return await _step(self)


_begin_steps = Steps.__init__


@bug("what may have been read before is not counted", (Steps, "__init__"))
def reread_not_counted(self: Steps, *given: Any) -> None:
    """Take each incarnation for the first."""
    _begin_steps(self, *given)
    self._begun = MINIMUM


# ---- bindings --------------------------------------------------------------------------------------------------------


@bug("data are made durable first, and their binding when there is time", (RemapShard, "mint"))
async def minted_after_the_data(self: RemapShard, time: int, offsets: Any) -> Remap:
    """Bind in memory; durably at the next tick."""
    due, self.__dict__["_due"] = self.__dict__.get("_due"), (time, offsets)
    if due is not None:
        self._remap = self.__dict__.get("_durable", self._remap)
        await _mint(self, *due)
    self.__dict__["_durable"] = self._remap
    if self._remap.upper.beyond(time):
        self._remap = self._remap.mint(time, offsets)
    return self._remap


_mint = RemapShard.mint


@bug("an ingester that comes second believes in the binding that it made up", (RemapShard, "mint"))
async def own_binding_believed(self: RemapShard, time: int, offsets: Any) -> Remap:
    """Take any answer for a yes."""
    if self._remap.upper.beyond(time):
        before, after = self._remap, self._remap.mint(time, offsets)
        records = list(binding._difference(before, after, time))
        outcome = await self._shard.append(records, before.upper, after.upper)
        if isinstance(outcome, Appended) or self._shard.state.epoch == self._epoch:
            self._learn(after)
    return self._remap
