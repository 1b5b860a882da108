"""Bugs that are planted where a materialization gets other views, to prove that its world sees them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.materialize.protocol import states
from strandline.materialize.protocol.task import Checkpoint, Progress
from worlds.rebinding import RebindingWorld

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("a binding that has come since takes part in the replay of a transaction", (states.Machine, "taking_part"))
def all_take_part(self: states.Machine, progress: Progress) -> tuple[str, ...]:
    """Read all of them up to where it ends."""
    return self.state_keys


@bug("a task that is bound to other views begins anew", (Checkpoint, "advance"))
def begins_anew(self: Checkpoint, state_keys: Any, upper: int) -> Checkpoint:
    """Keep a time of nothing, where other bindings are there than before."""
    same = {key for key, _ in self.times} <= set(state_keys)
    return Checkpoint(tuple(sorted(dict.fromkeys(state_keys, upper).items()))) if same else Checkpoint()


@bug("a view comes back under the counter that its table had", (RebindingWorld, "bump"))
def same_counter(self: RebindingWorld, place: int) -> None:
    """Leave it."""
