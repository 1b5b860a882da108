"""One tick: bring every stage of every view to one time, in as little work as that takes.

Stages run in the order of their inputs; those that do not read each other run together, so that Spark's jobs overlap.
Those with nothing to do but move their upper are collected and moved at once, by one durable write: a tick in which
nothing changed costs no Spark job and one flush.  A stage that fails stands still, with what depends on it; the others
go on, and it is tried again at the next tick.

Source: design page "compute" (Spark jobs are budgeted per tick, not per view).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from strandline.compute.step import Done, StageRun
from strandline.errors import FencedError, StrandlineError
from strandline.frontier.antichain import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.state import Fenced
from strandline.persist.write import fenced

Together: TypeAlias = Callable[[Sequence[Coroutine[Any, Any, None]]], Awaitable[object]]
"""Runs coroutines side by side until all have ended; raises what the first of them raises.  The wiring decides how."""


@dataclass
class TickReport:
    """What happened to each stage."""

    moved: list[str] = field(default_factory=list)
    stepped: dict[str, Done] = field(default_factory=dict)
    failed: dict[str, StrandlineError] = field(default_factory=dict)


async def tick(client: PersistClient, runs: Sequence[StageRun], upper: Frontier, together: Together) -> TickReport:
    """Bring ``runs`` (inputs before those that read them) up to ``upper`` as far as their inputs are known.

    Raises `FencedError` if a newer epoch has taken over; every other failure is in the report.
    """
    report = TickReport()
    waiting: dict[str, StageRun] = {}  # quiet, not moved yet
    for level in levels(runs):
        ready = [run for run in level if not any(name in report.failed for name in run.inputs)]
        quiet = {run.name: run for run in ready if run.quiet(upper, frozenset(waiting))}
        active = [run for run in ready if run.name not in quiet]
        if any(name in waiting for run in active for name in run.inputs):
            await _move(client, waiting, upper, report)
        await together([_step(run, upper, report) for run in active])
        waiting |= quiet
    await _move(client, waiting, upper, report)
    return report


def levels(runs: Sequence[StageRun]) -> list[list[StageRun]]:
    """Return the stages by how many others stand before them: none of one level reads another of it."""
    depth: dict[str, int] = {}
    found: list[list[StageRun]] = []
    for run in runs:
        depth[run.name] = 1 + max((depth[name] for name in run.inputs if name in depth), default=-1)
        if depth[run.name] == len(found):
            found.append([])
        found[depth[run.name]].append(run)
    return found


async def _step(run: StageRun, upper: Frontier, report: TickReport) -> None:
    try:
        done = await run.step(upper)
    except FencedError:
        raise
    except StrandlineError as error:
        report.failed[run.name] = error
        await run.sink.open()  # what became of the append is unknown: look at the shard before the next step
    else:
        if done is not None:
            report.stepped[run.name] = done


async def _move(client: PersistClient, waiting: dict[str, StageRun], upper: Frontier, report: TickReport) -> None:
    runs = list(waiting.values())
    waiting.clear()
    outcomes = await client.advance_many([(run.sink.writer, upper, run.sink.fingerprint) for run in runs])
    for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, Fenced):
            raise fenced(run.sink.writer.shard, outcome, run.sink.writer.epoch)
        run.sink.moved(outcome, upper)
        report.moved.append(run.name)
