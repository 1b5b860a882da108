"""Bugs that are planted in what a controller and its replicas say to each other.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.controller import planning
from strandline.controller.defining import definitions
from strandline.controller.instances.link import Heard, Link
from strandline.controller.instances.replicas import Replicas
from strandline.controller.instances.running import Running
from strandline.controller.retention import Retention
from strandline.controller.writing import Writing
from strandline.frontier.antichain import Frontier
from strandline.instance.instance import Instance
from strandline.instance.protocol.messages import Create, Hello
from strandline.instance.replica import replica as replica_module
from strandline.instance.replica.reconcile import Reconciliation
from strandline.instance.replica.replica import Connection, Replica
from strandline.instance.replica.reporting import Reporter

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

# ---- the controller --------------------------------------------------------------------------------------------------

_frontiers = Replicas.frontiers


@bug("a view is taken to be where its replicas were brought to, before one has said so", (Replicas, "frontiers"))
def frontier_assumed(self: Replicas) -> dict[str, Frontier]:
    """Believe that what was commanded is done."""
    brought = self._time.at or 0
    return {name: Frontier(max(upper.at or 0, brought + 1)) for name, upper in _frontiers(self).items()}


@bug("what was said over an earlier connection counts for the next one", (Heard, "__init__"))
def heard_before(self: Heard, _known: dict[str, Any] = {}) -> None:  # noqa: B006 - it is the bug
    """Share what was heard."""
    for name, kind in (("writes", dict), ("needs", dict), ("problems", dict), ("under_way", dict), ("counters", dict), ("disagreements", dict)):
        setattr(self, name, _known.setdefault(name, kind()))
    self.incarnation, self.reconciled, self.advanced = "", None, None


@bug("a connection that was cut is not made again", (Link, "_lost"))
async def never_again(self: Link, why: str) -> None:
    """Keep what is broken."""
    self.trouble, self.heard = why, Heard()


@bug("what a replica reports between ticks is not followed", (Running, "_moved"))
def late_unfollowed(self: Running) -> None:
    """Wait for the next tick."""


@bug("what runs in replicas has no problem while none of them is connected", (Running, "_note"))
def away_in_silence(self: Running) -> None:
    """Note nothing."""


@bug("a view that was dropped runs on in its replicas", (Replicas, "stop"))
def never_ended(self: Replicas, name: str) -> None:
    """Forget it here alone."""
    self._runs.pop(name, None)


@bug("what a replica must still read is not held", (Retention, "hold"))
async def held_too_late(self: Retention, item: Any) -> None:
    """Hold nothing of what runs elsewhere."""
    if not getattr(item, "instance", ""):
        await _hold(self, item)


_hold = Retention.hold


@bug("a schedule is not begun by what a replica has brought on", (Writing, "_look"))
async def creation_unseen(self: Writing, views: Any) -> None:
    """Look at nothing."""


_shards = planning.stage_shards


@bug(
    "views of two instances write one shard",
    (definitions, "stage_shards"),
)
def shards_shared(stages: Any, catalog: Any, ids: Any, before: Any = {}, *, instance: str) -> dict[str, str]:  # noqa: B006
    """Take the shard of whichever view has the stage."""
    known = {name: shard for view in catalog.items.values() for name, shard in getattr(view, "stages", {}).items()}
    return {stage.name: known.get(stage.name) or ids.fresh("s") for stage in stages[:-1]}


# ---- the replica -----------------------------------------------------------------------------------------------------


@bug("a controller that was succeeded is obeyed", (Replica, "_refusal"))
def stale_obeyed(self: Replica, hello: Hello) -> str:
    """Refuse no controller."""
    return ""


_obey = Replica._obey


@bug("what an older connection said is obeyed, though a newer one has begun", (Replica, "_turn"))
async def older_connection_obeyed(self: Replica) -> None:
    """Obey whatever is there."""
    while self._inbox:
        connection, command = self._inbox.popleft()
        connection.carrier = connection.carrier if self._connection is None else self._connection.carrier
        await _obey(self, connection, command)
    await _turn(self)


_turn = Replica._turn
_reconcile = Replica._reconcile


@bug("turns of the controller before count for the next one", (Replica, "_reconcile"))
async def turns_kept(self: Replica, connection: Connection) -> None:
    """Keep the aim."""
    aim = self._aim
    await _reconcile(self, connection)
    self._aim = aim


@bug("what is not mentioned runs on", (Replica, "_end"))
async def never_dropped(self: Replica, found: Reconciliation) -> None:
    """End what is replaced alone."""
    for each in found.replace:
        await self._stop(each)


@bug("everything is dropped before it is known what is to run", (Replica, "_obey"))
async def dropped_too_early(self: Replica, connection: Connection, command: Any) -> None:
    """Begin with nothing."""
    if type(command).__name__ == "CreateInstance":
        for each in list(self._runs):
            await self._stop(each)
        self._wanted = replica_module.Wanted()
    await _obey(self, connection, command)


@bug("what others write is never looked at", (Instance, "look"))
async def never_looked(self: Instance) -> None:
    """Know what was known when it was opened."""


@bug("one view that is fenced ends all of a replica for ever", (Replica, "_begin"))
async def fenced_for_ever(self: Replica, instance: Instance, wanted: Create) -> None:
    """Begin nothing from then on."""
    if getattr(self, "_over", False):
        return
    await _begin(self, instance, wanted)
    self._over = "fenced" in self._problems.get(wanted.id, "")


_begin = Replica._begin


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
