"""Bugs that are planted in how history ends; see `planted.whole`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from planted.bugs import Bug, registrar
from strandline.compute.step import StageRun
from strandline.environment import retention
from strandline.environment.retention import Limit
from strandline.frontier.antichain import Frontier, as_time
from strandline.sources.remap import RemapShard

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug(
    "since follows each shard's own upper, whatever a stage that stands still has not read", (retention, "stage_limits")
)
def needs_forgotten(runs: Iterable[StageRun]) -> tuple[()]:
    """Ask no stage."""
    return ()


_limits = retention.stage_limits


@bug("since goes as far as the time at which a stage goes on, and not one step below", (retention, "stage_limits"))
def one_step_too_far(runs: Iterable[StageRun]) -> Iterator[Limit]:
    """Give up the time that tells what is new from what was there."""
    for shard, since in _limits(runs):
        yield shard, Frontier(as_time(since) + 1)


@bug("bindings are forgotten up to where data are durable", (RemapShard, "compact"))
def no_predecessor(self: RemapShard, durable: Frontier) -> None:
    """Compact to the upper, and not to one step below."""
    if durable < self._remap.upper:
        self._remap = self._remap.compact(durable)
