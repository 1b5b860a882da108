"""Bugs that are planted in how a view gets another query.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.controller import commanded, writing
from strandline.controller.location.version import succeeded, successors
from strandline.controller.writing import Writing
from strandline.instance.running.dataflows import Dataflows

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

_open = Dataflows._open


@bug("a replica that has not heard of the new query writes on", (Dataflows, "_open"))
async def unfenced(self: Dataflows, stage: Any, shard: str, epoch: int, *rest: Any) -> Any:
    """Open every shard under the same epoch."""
    return await _open(self, stage, shard, self._epoch, *rest)


@bug("a new query is put in place before it has caught up", (Writing, "_caught_up"))
async def too_early(self: Writing, names: Any) -> bool:
    """Wait for nothing."""
    return True


@bug("a view is put in place without what reads it", (writing, "companies"))
def each_alone(catalog: Any) -> list[frozenset[str]]:
    """Let none wait for another."""
    return [frozenset({each.name.lower()}) for each in successors(catalog)]


@bug("a view with other columns can be read at times at which what reads it is of before", (writing, "succeeded"))
def begun_before(catalog: Any, names: Any, begins: int = 0) -> Any:
    """Let all of its own history be read."""
    return succeeded(catalog, names)


@bug("a view goes on by the plan of the query before", (commanded, "_key"))
def plan_of_before(view: Any) -> tuple[str, str, bool]:
    """Know a plan by the shard alone."""
    return view.shard, "", bool(view.distrusted)
