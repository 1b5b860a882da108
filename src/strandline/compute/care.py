"""How a stage handles expressions that fail: plainly, row by row, or as one error.

*Plainly*: the plan unchanged.  *By rows*: the stage's plan made careful (`algebra.careful`), so that rows that fail
become rows of the error half.  *As a whole*: no single row can be blamed (a recomputed query fails, or an aggregate),
so the ok half is empty and the error half holds one error, which names the collection and the query.

A stage's care at a time is a function of its own errors in its shard at that time, so a restart finds it again.  Plain
and careful plans agree: where a plain plan evaluates, a careful one finds the same rows and no error.  So a step may
take more care than the one before it, and still be computed from its inputs' changes.

`afresh` computes a stage from its inputs' contents alone, and defines what its steps must add up to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sqlglot import exp

from strandline.algebra.careful import careful
from strandline.algebra.nodes import Constant, Node, UnionAll, frames
from strandline.algebra.scalar import Scalar
from strandline.algebra.schema import ERROR
from strandline.compute.lookups import Lookup, planned
from strandline.compute.rules.linear import updates
from strandline.compute.rules.rule import Window
from strandline.compute.stage import Stage, delta_plan, full_plan
from strandline.errors import EvaluationError, Unsettled
from strandline.persist.handles.contents import Rows
from strandline.plane import Engine, Errors

_QUERY: Final = "query"


class Care(Enum):
    """How a stage is computed."""

    PLAIN = "plain"
    ROWS = "rows"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy by which a stage is brought on.

    By its inputs' changes in the whole window; or ``narrow``: in its first time of change alone, everything read added
    up before anything is evaluated; or ``anew``: from its inputs' contents at that time.
    """

    care: Care
    narrow: bool = False
    anew: bool = False

    @property
    def wide(self) -> bool:
        """Whether it takes the whole window."""
        return not (self.narrow or self.anew)


_ANEW: Final = tuple(Strategy(care, anew=True) for care in Care)
_ON: Final = {
    Care.PLAIN: (Strategy(Care.PLAIN), Strategy(Care.PLAIN, narrow=True), Strategy(Care.ROWS, narrow=True), *_ANEW[2:]),
    Care.ROWS: (Strategy(Care.ROWS, narrow=True), *_ANEW[2:]),
    Care.WHOLE: _ANEW,
}
_REBUILT: Final = {Care.PLAIN: _ANEW, Care.ROWS: _ANEW[1:], Care.WHOLE: _ANEW}


def strategies(care: Care, *, rebuild: bool = False, anew: bool = False) -> tuple[Strategy, ...]:
    """Return the strategies to bring on a stage in ``care``, each for when those before it fail; the last cannot.

    ``rebuild``: it is computed anew in any case.  ``anew``: to compute it anew is
    cheaper, so this comes first (in plain care).

    >>> [each.care.name for each in strategies(Care.PLAIN)]
    ['PLAIN', 'PLAIN', 'ROWS', 'WHOLE']
    >>> [each.anew for each in strategies(Care.ROWS)]
    [False, True]
    """
    return (_ANEW[:1] if anew else ()) + (_REBUILT if rebuild else _ON)[care]


def care_of(own: Errors) -> Care:
    """Return the care that a stage with these errors of its own is in."""
    if not own.count:
        return Care.PLAIN
    return Care.WHOLE if _QUERY in json.loads(own.sample[0]) else Care.ROWS


@dataclass(frozen=True, slots=True)
class Careful:
    """A stage by rows: ``stage`` computes its ok half, ``errors`` are the plans of its own errors."""

    stage: Stage
    errors: tuple[Node, ...]

    def error_updates(self, window: Window) -> Node | None:
        """Return the plan of the updates of the errors in ``window``; None if there are none."""
        found = tuple(change for error in self.errors if (change := updates(error, window)) is not None)
        return UnionAll(found) if len(found) > 1 else found[0] if found else None


def by_rows(stage: Stage) -> Careful:
    """Return ``stage`` made careful."""
    ok, errors = careful(stage.plan, stage.blamed)
    return Careful(replace(stage, plan=ok), errors)


def whole_error(stage: Stage) -> Node:
    """Return the one error of a stage that fails as a whole."""
    described = "the query as a whole" if stage.rule is None else stage.rule.described(stage.plan)
    error = json.dumps({"collection": stage.blamed, _QUERY: described}, separators=(",", ":"))
    return Constant((ERROR,), ((Scalar(exp.Literal.string(error)),),))


@dataclass(frozen=True, slots=True)
class Halves:
    """The contents of a collection at one time: its rows, and its errors in frames that add up."""

    ok: Rows
    errors: tuple[Rows, ...] = ()


async def afresh(engine: Engine, stages: Sequence[Stage], inputs: Mapping[str, Halves], *, time: int) -> Halves:
    """Return the halves of the last of ``stages`` over those of the first ones' inputs, as insertions at ``time``.

    The rows of the inputs are net of what was withdrawn, so that no expression is evaluated on it.

    They are what a view and its errors must be at that time, whichever way the steps took: computed plainly first; if
    an expression fails, by rows; if no single row can be blamed, as one error.
    """
    known = dict(inputs)
    for stage in stages:
        known[stage.name] = await computed(engine, stage, known, time=time)
    return known[stages[-1].name]


async def computed(engine: Engine, stage: Stage, known: Mapping[str, Halves], *, time: int) -> Halves:
    """Return the halves of one stage over those of its inputs: with the least care that evaluates."""
    inherited = tuple(rows for name in stage.inputs for rows in known[name].errors)

    async def evaluated(plan: Node) -> Rows:
        return await engine.evaluate(plan, {name: known[name].ok for name in frames(plan)}, origin=time)

    for care in Care:
        plan, own = _plans(stage, care)
        try:
            ok, errors = await evaluated(plan), tuple([await evaluated(each) for each in own])
            await engine.differences(ok, stage.schema)  # a frame may be lazy: this evaluates all of it
            for each in errors:
                await engine.errors(each)
        except EvaluationError:
            continue
        except Unsettled:
            if care is not Care.PLAIN:  # that no row can be blamed is never guessed
                raise
            continue
        return Halves(ok, (*errors, *inherited))
    raise AssertionError("the last care evaluates nothing that may fail")


def _plans(stage: Stage, care: Care) -> tuple[Node, tuple[Node, ...]]:
    """Return the plan of the rows of ``stage`` over its inputs, by their own names, and those of its errors."""
    match care:
        case Care.PLAIN:
            return full_plan(stage), ()
        case Care.ROWS:
            careful = by_rows(stage)
            return full_plan(careful.stage), careful.errors
        case Care.WHOLE:
            return Constant(stage.schema.names, ()), (whole_error(stage),)


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans of a stage's updates and of its own errors (None where there are none), and what `lookups` says."""

    ok: Node | None
    err: Node | None = None
    lookups: tuple[Lookup, ...] = ()

    @property
    def frames(self) -> list[str]:
        """The names of the frames that they read, in order."""
        return sorted({name for plan in (self.ok, self.err) if plan is not None for name in frames(plan)})


class StepPlans:
    """The plans of the steps of one stage.

    A plan says what each window asks for, with the rows that it has to see.  A stage's windows are alike from tick to
    tick, and so are their plans: the last one is kept.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._careful: Careful | None = None
        self._last: tuple[tuple[Care, Window], Planned] | None = None

    def of(self, care: Care, window: Window) -> Planned:
        """Return the plans of the updates of both halves in ``window``: often those of the step before."""
        if self._last is None or self._last[0] != (care, window):
            self._last = (care, window), self._plan(care, window)
        return self._last[1]

    def _plan(self, care: Care, window: Window) -> Planned:
        if not (window.changed or window.first):
            return Planned(None)
        if care is Care.PLAIN:
            plan = delta_plan(self._stage, window)
            if plan is None or window.first:
                return Planned(plan)
            plan, lookups = planned(plan)
            return Planned(plan, None, lookups)
        if self._careful is None:
            self._careful = by_rows(self._stage)
        return Planned(delta_plan(self._careful.stage, window), self._careful.error_updates(window))
