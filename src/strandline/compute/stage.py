"""Stages: a view's plan cut where state is kept.

Each stage ends in at most one stateful node, and its output is a stored collection: of the last stage the view itself,
of the others internal ones.  An `ACCUMULATE` stage stores keys and accumulators, and its readers finalise them; a
`REGROUP` or `RECOMPUTE` stage stores the node's own output; a `LINEAR` stage keeps no state beyond its output.  Stages
come in an order in which each reads only imports and earlier ones.

An internal stage is named after a fingerprint of what it computes, so that two views with the same subplan name the
same stage.  Trap: the fingerprint holds the names of imports.  Code that shares stages across time must check that a
name still means the same collection.

Source: design page "compute" (from SQL to a dataflow, 4; a step).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from strandline.algebra.nodes import Filter, Get, Join, Node, Opaque, Project, Reduce, UnionAll, frames, with_frames
from strandline.algebra.scalar import Scalar, column
from strandline.algebra.schema import Column, Schema
from strandline.compute.delta.linear import updates
from strandline.compute.delta.phase import Phase, Window, frame, source
from strandline.compute.delta.recompute import replay
from strandline.compute.delta.reduce import accumulate, finalise, invertible, kept
from strandline.compute.delta.regroup import regroup
from strandline.compute.plan.view import PlannedView

FINGERPRINT_DIGITS: Final = 16


class Kind(Enum):
    """How a stage is maintained."""

    LINEAR = "linear"
    ACCUMULATE = "accumulate"
    REGROUP = "regroup"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stored collection and how it is computed.

    ``plan`` reads ``inputs`` (imports and earlier stages) by name; its root is the stateful node, if there is one.
    ``schema`` is what is stored; ``stored`` maps each of its columns to the plan's own: ``((stored, own), …)``.
    ``reason`` says why it is recomputed, if it is.
    """

    name: str
    kind: Kind
    plan: Node
    inputs: tuple[str, ...]
    schema: Schema
    stored: tuple[tuple[str, str], ...]
    reason: str | None = None

    @property
    def rule(self) -> str:
        """The maintenance rule, for people."""
        match self.kind:
            case Kind.LINEAR:
                return "apply the delta rules of joins, unions, projections and filters"
            case Kind.ACCUMULATE:
                return "add the changes of each touched group to its stored sums"
            case Kind.REGROUP:
                return "aggregate the touched groups again"
            case Kind.RECOMPUTE:
                return "recompute at each time of change, and take the difference"


def split(view: PlannedView, name: str) -> tuple[Stage, ...]:
    """Return the stages of ``view``, each after those it reads; the last is the view's own collection ``name``."""
    cut = _Cut(view)
    rest = cut.below(view.plan)
    own = cut.owner(rest)
    if own is None:
        last = _stage(Kind.LINEAR, rest, view.schema, name=name)
        return (*cut.stages.values(), last)
    names = {inner_name: stored for stored, inner_name in _renaming(rest) or ()}
    inner = tuple((names[own_name], own_name) for _, own_name in own.stored)
    stored = tuple(sorted(inner, key=lambda pair: view.schema.names.index(pair[0])))
    last = replace(own, name=name, schema=view.schema, stored=stored)
    return (*(stage for stage in cut.stages.values() if stage is not own), last)


def delta_plan(stage: Stage, window: Window) -> Node | None:
    """Return the plan of the stage's updates in ``window``, or None if nothing can change.

    It reads frames named by `delta.phase.frame`: of each input ``:delta``, ``:old`` or ``:new`` as the rule needs, of
    the stage's own stored output ``:old``.  In a first step it reads ``:new`` of the inputs only.
    """
    own, stored = [c for _, c in stage.stored], [c for c, _ in stage.stored]
    prior = Get(frame(stage.name, Phase.OLD), tuple(zip(own, stored, strict=True)))
    match stage.kind, stage.plan:
        case Kind.ACCUMULATE, Reduce() as node:
            return accumulate(node, stage.name, window)
        case Kind.REGROUP, Reduce() as node:
            found = regroup(node, replace(prior, columns=_ordered(prior, node)), window)
        case Kind.RECOMPUTE, Opaque() as node:
            found = replay(node, replace(prior, columns=_ordered(prior, node)), window)
        case _:
            return updates(stage.plan, window)
    if found is None or all(stored == own for stored, own in stage.stored):
        return found
    return Project(found, tuple((stored, Scalar(column(own))) for stored, own in stage.stored))


def full_plan(stage: Stage) -> Node:
    """Return the plan that computes the stage's contents from its inputs' contents, all of them at time 0.

    Its frames are the inputs, by their own names.
    """
    plan = delta_plan(stage, Window(frozenset(stage.inputs), (0,), first=True, small=False))
    assert plan is not None, "all inputs may have rows"
    return with_frames(plan, lambda name: source(name)[0])


def _ordered(prior: Get, node: Node) -> tuple[tuple[str, str], ...]:
    stored = dict(prior.columns)
    return tuple((name, stored[name]) for name in node.names)


@dataclass(slots=True)
class _Cut:
    """Cuts a plan from the leaves up; equal subplans are cut once."""

    view: PlannedView
    stages: dict[Node, Stage] = field(default_factory=dict)

    def below(self, node: Node) -> Node:
        """Return ``node`` with the stateful nodes in it replaced by what reads their stages."""
        match node:
            case Project(input=one) | Filter(input=one):
                return replace(node, input=self.below(one))
            case Join(inputs=many) | UnionAll(inputs=many):
                return replace(node, inputs=tuple(self.below(one) for one in many))
            case Reduce():
                return self._reduce(replace(node, input=self.below(node.input)))
            case Opaque():
                cut = replace(node, inputs=tuple(self.below(one) for one in node.inputs))
                stage = self._keep(Kind.RECOMPUTE, cut, self._schema(cut.names), cut.reason)
                return Get(stage.name, tuple((name, name) for name in cut.names))
            case _:
                return node

    def _reduce(self, node: Reduce) -> Node:
        keys = self._schema(name for name, _ in node.keys)
        if all(map(invertible, node.aggregates)):
            sums = (Column(a.name, a.type) for a in kept(node).accumulators)
            return finalise(node, self._keep(Kind.ACCUMULATE, node, (*keys, *sums)).name)
        values = (Column(a.name, a.type) for a in node.aggregates)
        stage = self._keep(Kind.REGROUP, node, (*keys, *values))
        return Get(stage.name, tuple((name, name) for name in node.names))

    def _schema(self, names: Iterable[str]) -> tuple[Column, ...]:
        return tuple(Column(name, self.view.types[name]) for name in names)

    def _keep(self, kind: Kind, node: Node, columns: tuple[Column, ...], reason: str | None = None) -> Stage:
        if node not in self.stages:
            self.stages[node] = _stage(kind, node, Schema(columns), reason=reason)
        return self.stages[node]

    def owner(self, rest: Node) -> Stage | None:
        """Return the stage whose output, renamed, is all that ``rest`` is, so that it can store the view itself."""
        leaf = rest.input if isinstance(rest, Project) else rest
        if not isinstance(leaf, Get) or _renaming(rest) is None:
            return None
        stage = next((s for s in self.stages.values() if s.name == leaf.frame), None)
        if stage is None or stage.kind is Kind.ACCUMULATE or any(stage.name in s.inputs for s in self.stages.values()):
            return None
        return stage


def _renaming(node: Node) -> tuple[tuple[str, str], ...] | None:
    """Return ``((output, column), …)`` if ``node`` gives each column of a frame exactly once, under some name."""
    if isinstance(node, Get):
        return node.columns
    if not isinstance(node, Project) or not isinstance(node.input, Get):
        return None
    below = dict(node.input.columns)
    taken = [expression.column for _, expression in node.columns]
    if None in taken or sorted(map(str, taken)) != sorted(below):
        return None
    return tuple((name, below[str(own)]) for (name, _), own in zip(node.columns, taken, strict=True))


def _stage(kind: Kind, plan: Node, schema: Schema, *, name: str | None = None, reason: str | None = None) -> Stage:
    if name is None:
        described = f"{kind.value}\n{plan!r}\n{schema.ddl}"
        name = f"{kind.value}-{hashlib.sha256(described.encode()).hexdigest()[:FINGERPRINT_DIGITS]}"
    stored = tuple((each, each) for each in schema.names)
    return Stage(name, kind, plan, tuple(sorted(frames(plan))), schema, stored, reason)
