"""Bugs that are planted in what a controller and its replicas say to each other.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.controller.instances.link import Link
from strandline.controller.instances.replicas import Replicas
from strandline.controller.instances.running import Running
from strandline.controller.retention import Retention
from strandline.controller.writing import Writing
from strandline.frontier import Frontier
from strandline.instance.instance import Instance
from strandline.instance.replica import Replica, Reporter

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

# ---- the controller --------------------------------------------------------------------------------------------------

_frontiers = Replicas.frontiers


@bug("a view is taken to be where its replicas were brought to, before one has said so", (Replicas, "frontiers"))
def frontier_assumed(self: Replicas) -> dict[str, Frontier]:
    """Believe that what was commanded is done."""
    brought = self._time.at or 0
    return {name: Frontier(max(upper.at or 0, brought + 1)) for name, upper in _frontiers(self).items()}


_say = Link.say


@bug("a connection that was cut is not made again", (Link, "say"))
def never_again(self: Link, command: Any) -> None:
    """Connect once."""
    if self._carrier is not None or not self.__dict__.setdefault("_dialled", False):
        self.__dict__["_dialled"] = True
        _say(self, command)


@bug("what a replica reports between ticks is not followed", (Running, "_moved"))
def late_unfollowed(self: Running) -> None:
    """Wait for the next tick."""


@bug("what a replica must still read is not held", (Retention, "hold"))
async def held_too_late(self: Retention, item: Any) -> None:
    """Hold nothing of what runs elsewhere."""
    if not getattr(item, "instance", ""):
        await _hold(self, item)


_hold = Retention.hold


@bug("a schedule is not begun by what a replica has brought on", (Writing, "_look"))
async def creation_unseen(self: Writing, views: Any) -> None:
    """Look at nothing."""


@bug("what has moved in a replica is followed at the next tick", (Running, "_bring"))
async def one_round(self: Running, upper: Any, deadline: Any) -> Any:
    """Look no further."""
    await self.here.look()
    report = await self.here.maintain(upper, deadline)
    for instance in self.instances.values():
        instance.aim(self._aim)
    for instance in self.instances.values():
        await instance.arrive(deadline)
    self._note()
    return report


@bug("what replicas have not done yet is not said to be under way", (Replicas, "going_on"))
def nothing_under_way(self: Replicas) -> dict[str, int | None]:
    """Say nothing."""
    return {}


# ---- the replica -----------------------------------------------------------------------------------------------------


@bug("what others write is never looked at", (Instance, "look"))
async def never_looked(self: Instance) -> None:
    """Know what was known when it was opened."""


@bug("one view that is fenced ends all of a replica for ever", (Replica, "_renew"))
async def fenced_for_ever(self: Replica, writes: int) -> None:
    """End all, and begin nothing anew under the same epoch."""
    held = self._writes
    await _renew(self, writes)
    if writes == held:
        self._instance = None


_renew = Replica._renew


@bug("a replica says that it has done what it has only begun", (Reporter, "changes"))
def done_when_begun(self: Reporter, now: Any) -> Any:
    """Report each view as complete where the first one is."""
    if now.writes:
        furthest = max(now.writes.values())
        now = type(now)(
            dict.fromkeys(now.writes, furthest), now.needs, now.advanced, now.problems, now.under_way, now.counters
        )
    return _changes(self, now)


_changes = Reporter.changes
