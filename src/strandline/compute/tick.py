"""One tick: bring every stage of every view to one time, in as little work as that takes.

Stages run in the order of their inputs.  Those with nothing to do but move their upper are collected and moved
together, by one durable write; so a tick in which nothing changed costs no Spark job and one flush.  A stage that fails
stands still, with what depends on it; the others go on, and it is tried again at the next tick.

Source: design page "compute" (Spark jobs are budgeted per tick, not per view).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.compute.step import Done, StageRun
from strandline.errors import FencedError, StrandlineError
from strandline.frontier.antichain import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.state import Fenced
from strandline.persist.write import fenced


@dataclass
class TickReport:
    """What happened to each stage."""

    moved: list[str] = field(default_factory=list)
    stepped: dict[str, Done] = field(default_factory=dict)
    failed: dict[str, StrandlineError] = field(default_factory=dict)


async def tick(client: PersistClient, runs: Sequence[StageRun], upper: Frontier) -> TickReport:
    """Bring ``runs`` (inputs before those that read them) up to ``upper`` as far as their inputs are known.

    Raises `FencedError` if a newer epoch has taken over; every other failure is in the report.
    """
    report = TickReport()
    waiting: dict[str, StageRun] = {}  # quiet, not moved yet
    for run in runs:
        if any(name in report.failed for name in run.inputs):
            continue
        if run.quiet(upper, frozenset(waiting)):
            waiting[run.name] = run
            continue
        if any(name in waiting for name in run.inputs):
            await _move(client, waiting, upper, report)
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
    await _move(client, waiting, upper, report)
    return report


async def _move(client: PersistClient, waiting: dict[str, StageRun], upper: Frontier, report: TickReport) -> None:
    runs = list(waiting.values())
    waiting.clear()
    outcomes = await client.advance_many([(run.sink.writer, upper, run.sink.fingerprint) for run in runs])
    for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, Fenced):
            raise fenced(run.sink.writer.shard, outcome, run.sink.writer.epoch)
        run.sink.moved(outcome, upper)
        report.moved.append(run.name)
