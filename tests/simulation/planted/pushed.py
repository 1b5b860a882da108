"""Bugs that are planted in the runtime of a materialization, to prove that its world sees them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from planted.bugs import Bug, registrar
from strandline.algebra.schema import DIFF
from strandline.frontier import Frontier
from strandline.materialize import runtime
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol import fsm, states
from strandline.materialize.protocol.messages import Loaded, Opened
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.materialize.reduce.rows import Combining
from strandline.materialize.reduced import Reduced
from strandline.materialize.runtime import Line, Task
from strandline.materialize.transfer import Deltas
from worlds.outside import CheckpointSession
from worlds.pushed_endpoints import Staging

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

_perform = Task._perform
_kept = Task._kept
_step = fsm.step
_close = fsm._close
_due = states.Machine.due
_open_log = RecoveryLog.open
_add = Deltas.add
_acknowledge = Staging.acknowledge
_finish = Reduced.finish
_closed = Task._closed
_combine = Combining.add


# ---- the line --------------------------------------------------------------------------------------------------------


@bug("an answer is waited for only when one is expected", (runtime, "Line"))
class Deaf(Line):
    """Listens to nothing while it sends."""

    def _listen(self) -> None:
        """Leave it to `receive`."""

    async def receive(self, seconds: float | None = None) -> Any:
        """Wait for an answer now, and only now."""
        self._check()
        return self._kept(await self._session.receive())


@bug("a message overtakes one that was posted before", (Line, "send"))
async def overtaking(self: Line, message: Any) -> None:
    """Wait for nothing."""
    self._listen()
    self._check()
    await self._session.send(message)


# ---- the machine -----------------------------------------------------------------------------------------------------


@bug("a transaction closes before the previous one is acknowledged", (fsm, "_close"))
def impatient(machine: Any, head: Any) -> Any:
    """Take the tail for done."""
    return _close(replace(machine, tail=states.Done()), head)


@bug("a replay is longer than the first attempt", (states.Machine, "due"))
def longer(self: states.Machine, upper: int, *, settles: bool = False) -> int | None:
    """Take what has come since, too."""
    if isinstance(self.head, states.Idle) and self.head.progress.extent is not None:
        self = replace(self, head=replace(self.head, progress=replace(self.head.progress, extent=None)))
    return _due(self, upper, settles=settles)


@bug("a task goes on in the session in which something failed", (Task, "_drop"))
async def session_kept(self: Task) -> None:
    """Keep it."""


@bug("the log counts where the endpoint says how far it is", (runtime, "step"))
def own_opinion(machine: Any, event: Any) -> Any:
    """Do not hear it."""
    return _step(machine, replace(event, checkpoint=None) if isinstance(event, Opened) else event)


@bug("an endpoint that says it has nothing is not asked whether it has", (runtime, "step"))
def empty_is_unknown(machine: Any, event: Any) -> Any:
    """Take an empty checkpoint for none."""
    if isinstance(event, Opened) and event.checkpoint == NOTHING:
        event = replace(event, checkpoint=None)
    return _step(machine, event)


# ---- the actor -------------------------------------------------------------------------------------------------------


@bug("holds move when the log commits, and the endpoint has not", (Task, "_perform"))
async def hasty(self: Task, action: Any) -> Any:
    """Release what is behind the log's checkpoint."""
    found = await _perform(self, action)
    if isinstance(action, states.PersistCommit):
        for feed in self._feeds:
            await feed.hold(Frontier(max(0, action.progress.checkpoint.time(self._spec.state_keys) - 1)))
    return found


@bug("holds do not wait for the checkpoint that a driver's state names", (Task, "_perform"))
async def state_unread(self: Task, action: Any) -> Any:
    """Follow the newest position."""
    if isinstance(action, states.Hold):
        return await self._feeds[action.binding].hold(Frontier(max(0, action.time - 1)))
    return await _perform(self, action)


@bug("an extent is not durable before its first row is sent", (Task, "_perform"))
async def extent_unwritten(self: Task, action: Any) -> Any:
    """Keep it in memory."""
    if isinstance(action, states.PersistExtent):
        return states.ExtentPersisted()
    return await _perform(self, action)


@bug("of what a replay finds in the endpoint nothing is kept", (Task, "_kept"))
def unkept(self: Task, response: Any) -> Any:
    """Take it for an answer without rows."""
    if isinstance(response, Loaded) and self._transfers[response.binding]._loaded is not None:
        return replace(response, rows=response.rows[:0])
    return _kept(self, response)


@bug("what an endpoint acknowledges is said to be there when it has begun", (Task, "_perform"))
async def commit_unwritten(self: Task, action: Any) -> Any:
    """Leave the log's commit out."""
    if isinstance(action, states.PersistCommit):
        return states.CommitPersisted()
    return await _perform(self, action)


@bug("a driver's state is lost when the log commits", (Task, "_perform"))
async def state_lost(self: Task, action: Any) -> Any:
    """Write the progress alone."""
    return await _perform(self, replace(action, state=None) if isinstance(action, states.PersistCommit) else action)


@bug("what comes is pushed, and what goes is pushed as if it came", (Deltas, "add"))
def always_more(self: Deltas, batch: Any) -> Any:
    """Push every change with the diff 1."""
    rows = _add(self, batch)
    place = rows.schema.get_field_index(DIFF)
    return rows if place < 0 else rows.set_column(place, DIFF, [[abs(n) for n in rows[DIFF].to_pylist()]])


# ---- reductions ------------------------------------------------------------------------------------------------------


@bug("what is reduced is not reduced with what is stored", (Reduced, "finish"))
def partly_reduced(self: Reduced, rows: Any, loaded: Any) -> Any:
    """Leave it out."""
    return _finish(self, rows, [])


@bug("what is stored is not asked for where rows are reduced", (Task, "_closed"))
def unasked(self: Task) -> states.Machine:
    """Take them for rows that are kept as they are."""
    return replace(_closed(self), reduces=frozenset())


@bug("of what is pushed in a transaction all of a key is reduced with what was pushed before", (Combining, "add"))
def summed_up(self: Combining, batch: Any) -> Any:
    """Keep what was pushed, and push it again."""
    rows = _combine(self, batch)
    return pa.concat_tables([rows, rows]) if len(rows) else rows


# ---- fences and endpoints --------------------------------------------------------------------------------------------


@bug("a log is opened under an older epoch than its own", (RecoveryLog, "open"))
async def older_epoch(self: RecoveryLog) -> Any:
    """Take it over from any other."""
    mine, self._epoch = self._epoch, 1 << 40
    try:
        record = await _open_log(self)
    finally:
        self._epoch = mine
    return record


@bug("a session commits that was fenced off", (CheckpointSession, "_commit"))
def unfenced(self: CheckpointSession, checkpoint: Checkpoint) -> None:
    """Compare nothing."""
    self._fence = self.place.fences[self.name]
    _commit(self, checkpoint)


_commit = CheckpointSession._commit


@bug("a staged transaction is applied whenever it is acknowledged", (Staging, "acknowledge"))
def applied_again(self: Staging) -> Any:
    """Forget which were."""
    self.place.applied.discard(self.state.get("staged", ""))
    return _acknowledge(self)
