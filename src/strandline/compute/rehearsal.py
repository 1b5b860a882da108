"""A rehearsal: what the steps of a view would run is put before Spark when the view is defined, and not run.

A step's text is made from the plan, not by the author.  If Spark refuses it, the author learns of it at CREATE, and no
tick ever fails on it.

In the steps of a large view the text of a layer is there several times, in each step anew.  So its joins, projections,
filters and unions are put before Spark an expression at a time (`plan.asked.pieces`), and only the rest of a step as a
text, over relations in place of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strandline.algebra.nodes import (
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Project,
    UnionAll,
    children,
    frames,
    has_constant,
    rebuilt,
)
from strandline.algebra.schema import RESERVED, Schema
from strandline.compute.plan.asked.growth import nodes_of
from strandline.compute.plan.asked.pieces import WHOLE_NODES_MAX, Pieces
from strandline.compute.plan.scalars.analyst import Analyst
from strandline.compute.rules.phase import Window, source
from strandline.compute.stage import Stage, delta_plan
from strandline.errors import DefinitionError, Position

_START: Final = Position(1, 1)
_LINEAR: Final = Get | Project | Filter | Join | UnionAll | Negate


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """What is put before Spark of a stage: steps, and the columns of each frame that they read."""

    stage: Stage
    steps: tuple[Node, ...]
    read: Mapping[str, Schema]


def rehearse(stages: Sequence[Stage], collections: Mapping[str, Schema], analyst: Analyst) -> None:
    """Rehearse a first step, a step at one time and a step at two times of each of ``stages``, in which all changes.

    Of a stage that is recomputed it is the step at one time: each step of it runs the same query, which may be the
    whole view.  So it is of a linear one: its first step is one term of that step.

    Raises `DefinitionError` if one of them could not run: a mistake of ours, but the author's view to write otherwise.
    """
    whole = list(_whole(stages, collections))
    if sum(nodes_of(stage.plan) for stage in stages) > WHOLE_NODES_MAX:
        whole = _shortened(whole, analyst)
    for each in whole:
        _rehearse(each, analyst)


def _whole(stages: Sequence[Stage], collections: Mapping[str, Schema]) -> Iterator[_Rehearsal]:
    known = dict(collections)
    for stage in stages:
        known[stage.name] = stage.schema
        steps = tuple(step for step in dict.fromkeys(delta_plan(stage, window) for window in _windows(stage)) if step)
        yield _Rehearsal(stage, steps, {name: known[source(name)[0]] for step in steps for name in frames(step)})


def _rehearse(asked: _Rehearsal, analyst: Analyst) -> None:
    """Put the steps of a stage before Spark in one question; if it refuses that, one by one."""
    if not asked.steps:
        return
    try:
        analyst.rehearse(asked.steps, asked.read, asked.stage.schema)
    except DefinitionError as refused:
        if len(asked.steps) == 1:
            raise _refused(asked.stage, refused) from refused
        for step in asked.steps:
            _rehearse(replace(asked, steps=(step,), read=_read(step, asked.read)), analyst)


def _read(step: Node, read: Mapping[str, Schema]) -> dict[str, Schema]:
    return {name: read[name] for name in frames(step)}


def _windows(stage: Stage) -> tuple[Window, ...]:
    """Return windows whose steps have all that is in any step of ``stage``."""
    changed = frozenset(stage.inputs)
    first, one, two = Window(changed, (0,), first=True), Window(changed, (1,)), Window(changed, (1, 2))
    if stage.reason is not None:
        return (one,)
    return (first, one, two) if stage.rule is not None or has_constant(stage.plan) else (one,)


def _shortened(whole: Sequence[_Rehearsal], analyst: Analyst) -> list[_Rehearsal]:
    """Return what is left to be rehearsed once Spark accepts the `_layers` of all steps, expression by expression.

    It may refuse one and accept it as part of a whole, in which a column has a type that no relation has; then that is
    all of it.
    """
    pieces = Pieces(analyst, {name: schema for each in whole for name, schema in each.read.items()})
    layers = list(dict.fromkeys(layer for each in whole for step in each.steps for layer in _layers(step)))
    try:
        schemas = pieces.schemas(layers)
    except DefinitionError:
        return list(whole)
    named = {layer: (f"{RESERVED}layer_{n}", schemas[n]) for n, layer in enumerate(layers)}
    return [_over_layers(each, named) for each in whole]


def _layers(step: Node) -> Iterator[Node]:
    """Yield the largest parts of ``step`` that only join, compute, filter and unite."""
    if _is_linear(step):
        if not isinstance(step, Get):
            yield step
        return
    for below in children(step):
        yield from _layers(below)


def _is_linear(node: Node) -> bool:
    return isinstance(node, _LINEAR) and all(map(_is_linear, children(node)))


def _over_layers(whole: _Rehearsal, known: Mapping[Node, tuple[str, Schema]]) -> _Rehearsal:
    """Return the steps over a frame in place of each of the layers ``known``; without those that are one layer."""

    def over(node: Node) -> Node:
        if node not in known:
            return rebuilt(node, over)
        frame, schema = known[node]
        return Get.of(frame, schema.names)

    def is_known(step: Node) -> bool:
        return step in known and set(known[step][1]) == set(whole.stage.schema)

    steps = tuple(over(step) for step in whole.steps if not is_known(step))
    read = {**whole.read, **dict(known.values())}
    return replace(whole, steps=steps, read={name: read[name] for step in steps for name in frames(step)})


def _refused(stage: Stage, refused: DefinitionError) -> DefinitionError:
    message = f"Spark would refuse a step of this view ({stage.kind}): {refused.message}"
    return DefinitionError(message, _START)
