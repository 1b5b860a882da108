"""Stages computed from their inputs' contents alone: what a view and its errors must be at one time.

Plainly first; where an expression fails, row by row; where no single row can be blamed, as one error.  So it is what
the steps of a stage come to, whichever way they took (`care`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.algebra.nodes import Constant, Node, frames
from strandline.compute.care import Care, by_rows, whole_error
from strandline.compute.stage import Stage, full_plan
from strandline.errors import EvaluationError, Unsettled
from strandline.persist.handles.contents import Rows
from strandline.plane.engine import Engine


@dataclass(frozen=True, slots=True)
class Halves:
    """The contents of a collection at one time: its rows, and its errors in frames that add up."""

    ok: Rows
    errors: tuple[Rows, ...] = ()


async def afresh(engine: Engine, stages: Sequence[Stage], inputs: Mapping[str, Halves], *, time: int) -> Halves:
    """Return the halves of the last of ``stages`` over those of the first ones' inputs, as insertions at ``time``.

    The rows of the inputs are net of what was withdrawn, so that no expression is evaluated on it.
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
