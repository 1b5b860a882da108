"""Stages: a view's plan cut where state is kept, and the rehearsal of their steps.

Each stage ends in at most one stateful node, and its output is a stored collection: of the last stage the view itself,
of the others internal ones.  The node's rule (`rules.registry`) says what is stored, and how its readers make the
node's rows of it; a `LINEAR` stage keeps no state beyond its output.  Stages come in an order in which each reads only
imports and earlier ones.  Two more kinds of parts are stages of their own:

- Inputs joined for a node that reads all of them at each change, so that only changes are joined.
- Parts that a plan reads so often that its steps would become large (`plan.asked`).

An internal stage is named after a fingerprint of what it computes, so that two views with the same subplan name the
same stage.  Trap: the fingerprint holds the names of imports.  Code that shares stages across time must check that a
name still means the same collection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
    has_join,
    rebuilt,
    renaming,
    with_frames,
)
from strandline.algebra.scalar import Scalar, column
from strandline.algebra.schema import RESERVED, SUCCESSOR, Schema
from strandline.compute.plan.asked import WHOLE_NODES_MAX, Pieces, nodes_of
from strandline.compute.plan.scalars.context import Analyst
from strandline.compute.plan.view import PlannedView
from strandline.compute.rules.linear import updates
from strandline.compute.rules.registry import NAMED, rule_of
from strandline.compute.rules.rule import Phase, Rule, Window, frame, own_columns, own_rows, source
from strandline.errors import WAITS, DefinitionError, Position
from strandline.frontier import Refresh
from strandline.problem import Problem, Stopped, Way

FINGERPRINT_DIGITS: Final = 16
BEHIND: Final = Problem("waits-for-inputs", WAITS + "{inputs}", Stopped.VIEW)
UNREADABLE: Final = Problem("waits-for-history", WAITS + "{item!r}, which cannot be read before {since}", Stopped.VIEW)
STUCK: Final = Problem(
    "view-stuck",
    "it stands at {at}, although all that it reads is known up to {upper}",
    Stopped.VIEW,
    (Way("report it as a bug of Strandline, and restart the process that writes"),),
)
UNWRITTEN: Final = Problem(
    "not-promoted",
    "this instance may not write yet",
    Stopped.NOTHING,
    (Way("it writes once its version is promoted", "strandline promote"),),
    "The version that is there.",
)


LINEAR: Final = "linear"
_LINEAR: Final = "apply the delta rules of joins (outer, semi and anti ones too), unions, projections and filters"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stored collection and how it is computed.

    ``kind``: the name of its rule, or `LINEAR`.  ``plan`` reads ``inputs`` (imports and earlier stages) by name; its
    root is the stateful node, if there is one.
    ``schema`` is what is stored; ``stored`` maps each of its columns to the plan's own: ``((stored, own), …)``.
    ``reason`` says why it is recomputed, if it is.
    """

    name: str
    kind: str
    plan: Node
    inputs: tuple[str, ...]
    schema: Schema
    stored: tuple[tuple[str, str], ...]
    reason: str | None = None

    @property
    def blamed(self) -> str:
        """The collection that its errors name: of the stage of a successor, the one that this is to replace."""
        return self.name.removeprefix(SUCCESSOR)

    @property
    def rule(self) -> Rule[Any] | None:
        """The rule that maintains it; None if it keeps no state beyond its output."""
        return NAMED.get(self.kind)

    @property
    def sort(self) -> tuple[str, ...]:
        """The columns by which what is stored is sorted; none: by all of them."""
        stored_as = {own: stored for stored, own in self.stored}
        return () if self.rule is None else tuple(stored_as[name] for name in self.rule.key(self.plan))

    @property
    def sentence(self) -> str:
        """What a step does, for people."""
        return _LINEAR if self.rule is None else self.rule.sentence


def split(view: PlannedView, name: str, refresh: Refresh | None = None, apart: str = "") -> tuple[Stage, ...]:
    """Return the stages of ``view``, each after those it reads; the last is the view's own collection ``name``.

    Views share a stage only if they have the same schedule, and the same ``apart``.
    """
    cut = _Cut(view, refresh, apart)
    rest = cut.below(view.plan)
    own = cut.owner(rest)
    if own is None:
        last = _stage(LINEAR, rest, view.schema, name=name)
        return (*cut.stages.values(), last)
    renamed = renaming(rest)
    assert renamed is not None, "only a renaming has an owner"
    names = {inner_name: stored for stored, inner_name in renamed.columns}
    inner = tuple((names[own_name], own_name) for _, own_name in own.stored)
    stored = tuple(sorted(inner, key=lambda pair: view.schema.names.index(pair[0])))
    last = replace(own, name=name, schema=view.schema, stored=stored)
    return (*(stage for stage in cut.stages.values() if stage is not own), last)


def delta_plan(stage: Stage, window: Window) -> Node | None:
    """Return the plan of the stage's updates in ``window``, or None if nothing can change.

    It reads frames named by `rule.frame`: of each input ``:delta``, ``:old`` or ``:new`` as the rule needs, of
    the stage's own stored output ``:old``.  In a first step it reads ``:new`` of the inputs only.
    """
    rule = stage.rule
    if rule is None:
        return updates(stage.plan, window)
    stored_as = {own: stored for stored, own in stage.stored}
    columns = tuple((own, stored_as[own]) for own in rule.names(stage.plan))
    found = rule.updates(stage.plan, Get(frame(stage.name, Phase.OLD), columns), window)
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


@dataclass(slots=True)
class _Cut:
    """Cuts a plan from the leaves up; equal subplans are cut once."""

    view: PlannedView
    refresh: Refresh | None = None
    apart: str = ""
    stages: dict[Node, Stage] = field(default_factory=dict)
    done: dict[int, Node] = field(default_factory=dict)

    def below(self, node: Node) -> Node:
        """Return ``node``, which is one of the view's plan, with its stored nodes replaced by reads of their stages."""
        if id(node) not in self.done:
            self.done[id(node)] = self._cut(node)
        return self.done[id(node)]

    def _cut(self, node: Node) -> Node:
        cut = rebuilt(node, self.below)
        rule = rule_of(cut)
        if rule is None:
            return self._joined(cut) if any(node is each for each in self.view.parts) else cut
        if rule.reads_all:
            cut = rebuilt(cut, self._joined)
        if cut not in self.stages:
            schema = Schema(rule.kept(cut, self.view.types))
            self.stages[cut] = _stage(rule.name, cut, schema, self.refresh, self.apart, reason=rule.reason(cut))
        return rule.output(cut, self.stages[cut].name)

    def _joined(self, node: Node) -> Node:
        """Return what reads ``node``: from a stage of its own, if it joins."""
        if not has_join(node):
            return node
        if node not in self.stages:
            schema = Schema(own_columns(node, self.view.types))
            self.stages[node] = _stage(LINEAR, node, schema, self.refresh, self.apart)
        return own_rows(node, self.stages[node].name)

    def owner(self, rest: Node) -> Stage | None:
        """Return the stage whose output, renamed, is all that ``rest`` is, so that it can store the view itself."""
        found = renaming(rest)
        stage = next((s for s in self.stages.values() if found is not None and s.name == found.frame), None)
        if stage is None or not _keeps_rows(stage) or any(stage.name in s.inputs for s in self.stages.values()):
            return None
        return stage


def _keeps_rows(stage: Stage) -> bool:
    """Return whether a stage stores the rows of its node as they are."""
    rule = stage.rule
    if rule is None or rule.names(stage.plan) != stage.plan.names:
        return False
    return isinstance(rule.output(stage.plan, stage.name), Get)


def _stage(
    kind: str,
    plan: Node,
    schema: Schema,
    refresh: Refresh | None = None,
    apart: str = "",
    *,
    name: str | None = None,
    reason: str | None = None,
) -> Stage:
    if name is None:
        described = f"{kind}\n{plan!r}\n{schema.ddl}" + ("" if refresh is None else f"\n{refresh!r}")
        described += f"\n{apart}" if apart else ""
        name = f"{kind}-{hashlib.sha256(described.encode()).hexdigest()[:FINGERPRINT_DIGITS]}"
    stored = tuple((each, each) for each in schema.names)
    return Stage(name, kind, plan, tuple(sorted(frames(plan))), schema, stored, reason)


_START: Final = Position(1, 1)
_LINEAR_NODES: Final = Get | Project | Filter | Join | UnionAll | Negate


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

    Spark analyses the steps when the view is defined, and runs none.  A step's text is made from the plan, not by the
    author.  If Spark refuses it, the author learns of it at CREATE, and no tick ever fails on it.

    In the steps of a large view the text of a layer is there several times, in each step anew.  So its joins,
    projections, filters and unions are put before Spark an expression at a time (`plan.asked`), and only the rest of a
    step as a text, over relations in place of them.

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
    return isinstance(node, _LINEAR_NODES) and all(map(_is_linear, children(node)))


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
