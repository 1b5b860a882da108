"""One tick: bring every stage of every view to one time, in as little work as that takes.

Stages run in the order of their inputs; those that do not read each other run together: as a *wave*, whose small
windows are staged at once, with those of stages above that only project them.
Those with nothing to do but move their upper are collected and moved at once, by one durable write: a tick in which
nothing changed costs no Spark job and one flush.

In that write a stage is moved over inputs that are moved by it too.  Where one of those is not, because another writer
was there first or the store did not do it, the stage has not read what its input holds there: it goes on from where the
move began, in this process (`Sink.moved`) as in the next (its certificate).

A stage that fails stands still, with what reads it; the others go on, and the next tick tries it again.  Whatever it
fails with, a bug of ours included, is its own problem; only `FencedError` ends the tick.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any, TypeAlias

from strandline.compute.step import ANEW, Done, Draft, StageRun
from strandline.errors import FencedError, StrandlineError, reason
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.handles.write import fenced
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import Appended, Fenced
from strandline.plane import Engine

SideBySide: TypeAlias = Callable[[Sequence[Coroutine[Any, Any, None]]], Awaitable[object]]
"""Runs coroutines side by side until all have ended; raises what the first of them raises.  The wiring decides how."""


@dataclass
class TickReport:
    """What happened to each stage, by its name.

    A stage is ``moved`` (nothing changed but its upper), ``stepped``, or ``failed``.  ``standing`` says of each stage
    that did not fail and is not where the tick wanted it what it waits for: no stage stands still silently.
    """

    moved: list[str] = field(default_factory=list)
    stepped: dict[str, Done] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    standing: dict[str, str] = field(default_factory=dict)

    def add(self, later: TickReport) -> None:
        """Add what has happened afterwards, to these stages or to others."""
        for name in (*later.moved, *later.stepped, *later.failed, *later.standing):
            self.failed.pop(name, None)
            self.standing.pop(name, None)
        self.moved += later.moved
        for name, done in later.stepped.items():
            before = self.stepped[name].rows_read if name in self.stepped else 0
            self.stepped[name] = replace(done, rows_read=before + done.rows_read)
        self.failed |= later.failed
        self.standing |= later.standing

    def problem(self, name: str) -> str:
        """Return what stands in the way of the stage ``name``; empty if nothing does."""
        return reason(self.failed[name]) if name in self.failed else self.standing.get(name, "")


async def tick(
    client: PersistClient,
    engine: Engine,
    runs: Sequence[StageRun],
    upper: Frontier,
    together: SideBySide,
    aside: Callable[[StageRun], None] | None = None,
) -> TickReport:
    """Bring ``runs`` up to ``upper`` as far as their inputs are known.

    ``aside``: is given each stage whose step takes long; such a stage is not stepped.

    Raises `FencedError` if a newer epoch has taken over; every other failure is one stage's, and in the report.
    """
    report = TickReport()
    waiting: dict[str, StageRun] = {}  # quiet, not moved yet
    order = levels(runs)
    for whole, above in pairwise([*order, []]):
        level = [run for run in whole if run.name not in report.stepped and run.name not in report.failed]
        quiet = {run.name: run for run in level if run.quiet(upper, _shards(waiting.values()))}
        due = [run for run in level if run.name not in quiet and not run.rests(upper)]
        active = [run for run in due if not await _set_aside(run, upper, aside)]
        waiting |= quiet  # with what they read: only so is it known whether that is moved
        if not all(_shards(waiting.values()).isdisjoint(run.reads) for run in active):
            await _move(client, waiting, upper, report)
        await _Wave(client, engine, active, above, upper, report, together).step()
    await _move(client, waiting, upper, report)
    for run in runs:
        if run.name not in report.failed and (standing := run.standing(upper)):
            report.standing[run.name] = standing
    return report


async def _set_aside(run: StageRun, upper: Frontier, aside: Callable[[StageRun], None] | None) -> bool:
    try:
        if aside is None or not await run.takes_long(upper):
            return False
    except StrandlineError:
        return False  # its step meets that, too
    aside(run)
    return True


def written_by(run: StageRun) -> str:
    """Return the shard that a stage writes: by it others read the stage, whatever their queries call it."""
    return run.sink.writer.shard


def _shards(runs: Iterable[StageRun]) -> frozenset[str]:
    return frozenset(written_by(run) for run in runs)


def levels(runs: Sequence[StageRun]) -> list[list[StageRun]]:
    """Return the stages by how many others stand before them, whatever the order of ``runs``: what is read comes first.

    A stage may have been opened before one that it reads, if that one could not be opened at first.
    """
    written = {written_by(run): run.name for run in runs}
    order = TopologicalSorter({run.name: [written[shard] for shard in run.reads if shard in written] for run in runs})
    order.prepare()
    found: list[list[StageRun]] = []
    while ready := order.get_ready():
        found.append([run for run in runs if run.name in ready])
        order.done(*ready)
    return found


@dataclass
class _Wave:
    """Steps stages of one level, ``runs``.  What those with small windows write is staged at once.

    With it is staged what stages ``above`` make of nothing else: these are stepped too.
    """

    client: PersistClient
    engine: Engine
    runs: Sequence[StageRun]
    above: Sequence[StageRun]
    upper: Frontier
    report: TickReport
    together: SideBySide
    drafts: dict[str, Draft] = field(default_factory=dict)
    staged: dict[str, Staged | BaseException] = field(default_factory=dict)
    appended: list[Draft] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    """Milliseconds for each stage, without those in which it waited for others."""

    async def step(self) -> None:
        begun = list(self.runs)
        try:
            await self._each(self.runs, self._draft)
            below = self._drafted.keys()
            begun += (following := [run for run in self.above if not below.isdisjoint(run.reads)])
            await self._each(following, self._follow)
            await self._stage()
            await self._each([run for run in self.runs if run.name not in self.report.failed], self._step)
            await self._each([run for run in following if run.name in self.drafts], self._step_behind)
            self._learn(begun)
        except BaseException:
            for run in begun:
                run.sink.forget()
            raise
        finally:
            for run in begun:
                run.stepping_ms = None

    @property
    def _drafted(self) -> dict[str, Draft]:
        """The drafts of this level, by the shards that they are for."""
        return {written_by(run): self.drafts[run.name] for run in self.runs if run.name in self.drafts}

    async def _each(self, runs: Sequence[StageRun], do: Callable[[StageRun], Awaitable[None]]) -> None:
        for run in runs:
            run.stepping_ms = run.stepping_ms or self.client.clock.now_ms()
        if runs:
            await self.together([self._alone(run, do) for run in runs])

    async def _alone(self, run: StageRun, do: Callable[[StageRun], Awaitable[None]]) -> None:
        """Do something with one stage; what it raises is the stage's own problem."""
        begun = self.client.clock.now_ms()
        try:
            await do(run)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - any error, a bug included, is the problem of this stage alone
            self.report.failed[run.name] = error
        self._count(run.name, self.client.clock.now_ms() - begun)

    def _count(self, name: str, ms: float) -> None:
        self.took[name] = self.took.get(name, 0) + ms

    def _learn(self, begun: Sequence[StageRun]) -> None:
        """Let each stage know what its step took."""
        for run in begun:
            done = self.report.stepped.get(run.name)
            if done is not None and done.window:
                run.costs.note(anew=done.window == ANEW, rows=done.rows_read, ms=self.took[run.name])

    async def _draft(self, run: StageRun) -> None:
        if (found := await run.draft(self.upper)) is not None:
            self.drafts[run.name] = found

    async def _follow(self, run: StageRun) -> None:
        if (found := await run.follow(self.upper, self._drafted)) is not None:
            self.drafts[run.name] = found

    async def _stage(self) -> None:
        asked = {name: each.writing for name, each in self.drafts.items() if each.writing.rows is not None}
        if asked:
            wanted = [(writing.rows, writing.request) for writing in asked.values() if writing.rows is not None]
            begun = self.client.clock.now_ms()
            self.staged |= zip(asked, await _staged(self.engine, wanted), strict=True)
            took, rows = self.client.clock.now_ms() - begun, sum(self.drafts[name].rows_read for name in asked)
            for name in asked:
                self._count(name, took * self.drafts[name].rows_read / max(1, rows))

    async def _step(self, run: StageRun) -> None:
        draft = self.drafts.get(run.name)
        done = await run.step(self.upper, None if draft is None else (draft, self.staged.get(run.name)))
        if done is not None:
            begun_ms = run.stepping_ms or 0
            ms = self.client.clock.now_ms() - begun_ms
            self.appended += [] if done.draft is None else [done.draft]
            self.report.stepped[run.name] = run.last = replace(done, ms=ms, at_ms=begun_ms, draft=None)

    async def _step_behind(self, run: StageRun) -> None:
        """Step a stage over what is appended now; if that is not what it was drafted of, it has to begin again."""
        if all(draft in self.appended for draft in self.drafts[run.name].follows):
            await self._step(run)
            return
        run.sink.forget()
        staged = self.staged.get(run.name)
        if isinstance(staged, Staged):
            await self.engine.discard(staged)


async def _staged(engine: Engine, asked: Sequence[tuple[Rows, StageRequest]]) -> Sequence[Staged | BaseException]:
    try:
        return await engine.stage_many(asked)
    except Exception as error:  # noqa: BLE001 - no stage has its rows: it is a problem of each of them
        return [error] * len(asked)


async def _move(client: PersistClient, waiting: dict[str, StageRun], upper: Frontier, report: TickReport) -> None:
    together = _shards(waiting.values())
    runs = [run for run in waiting.values() if run.sink.seen and run.sink.writer.state.upper < upper]
    waiting.clear()
    stood = [run.sink.writer.state.upper for run in runs]
    for run in runs:
        run.sink.move(upper)
        run.stepping_ms = client.clock.now_ms()
    try:
        outcomes = await client.advance_many([(run.sink.writer, upper, run.sink.fingerprint) for run in runs])
    finally:
        for run in runs:
            run.stepping_ms = None
    behind = together - {
        written_by(run) for run, outcome in zip(runs, outcomes, strict=True) if isinstance(outcome, Appended)
    }
    for run, lower, outcome in zip(runs, stood, outcomes, strict=True):
        match outcome:
            case Fenced():
                raise fenced(run.sink.writer.shard, outcome, run.sink.writer.epoch)
            case StrandlineError():
                report.failed[run.name] = outcome
            case _:
                run.sink.moved(outcome, upper, read=upper if behind.isdisjoint(run.reads) else lower)
                report.moved.append(run.name)
