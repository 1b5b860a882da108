"""Stages: a view's plan cut where state is kept.

Each stage ends in at most one stateful node, and its output is a stored collection: of the last stage the view itself,
of the others internal ones.  The node's rule (`rules.registry`) says what is stored, and how its readers make the
node's rows of it; a `LINEAR` stage keeps no state beyond its output.  What is joined for a node that reads all of it at
each change is a stage too, so that only changes are joined; and so are the parts of a plan that it reads so often that
its steps would become large (`plan.asked.growth`).  Stages come in an order in which each reads only imports and
earlier ones.

An internal stage is named after a fingerprint of what it computes, so that two views with the same subplan name the
same stage.  Trap: the fingerprint holds the names of imports.  Code that shares stages across time must check that a
name still means the same collection.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strandline.algebra.nodes import Get, Node, Project, frames, has_join, rebuilt, renaming, with_frames
from strandline.algebra.scalar import Scalar, column
from strandline.algebra.schema import SUCCESSOR, Schema
from strandline.compute.plan.view import PlannedView
from strandline.compute.rules.linear import updates
from strandline.compute.rules.phase import Phase, Window, frame, source
from strandline.compute.rules.registry import NAMED, rule_of
from strandline.compute.rules.rule import Rule, own_columns, own_rows
from strandline.errors import WAITS
from strandline.frontier.refresh import Refresh
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

    It reads frames named by `rules.phase.frame`: of each input ``:delta``, ``:old`` or ``:new`` as the rule needs, of
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
