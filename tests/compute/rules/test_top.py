"""The first rows in an order are right at every time, and the others are read only where a stored row changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import pytest
from histories import CATALOG, altered, answer, at, history, maintained

from strandline.algebra.nodes import Node, Opaque, Replay, Restrict, UnionAll, frames
from strandline.compute.lookups import planned
from strandline.compute.plan.scalars import context
from strandline.compute.plan.view import plan_view
from strandline.compute.rules.rule import Window
from strandline.compute.stage import Stage, delta_plan, split
from strandline.errors import CollectionError
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine

SHAPES: Final = {
    "rows": "SELECT k, j, v FROM t ORDER BY v DESC, k LIMIT 3",
    "a key that is not shown": "SELECT k FROM t ORDER BY v LIMIT 4",
    "a key that is computed": "SELECT k, v FROM t ORDER BY v * 2 - k LIMIT 2",
    "groups": "SELECT k, sum(v) AS s FROM t WHERE v IS NOT NULL GROUP BY k ORDER BY s DESC, k LIMIT 2",
    "distinct rows": "SELECT DISTINCT k, v FROM t ORDER BY v, k LIMIT 3",
    "a join": "SELECT t.k, u.v FROM t JOIN u ON t.j = u.j ORDER BY t.v, u.v LIMIT 3",
    "a union": "SELECT k, v FROM t UNION ALL SELECT j, v FROM u ORDER BY v LIMIT 5",
    "more than there are": "SELECT k, v FROM t ORDER BY v LIMIT 1000",
    "none": "SELECT k, v FROM t ORDER BY v LIMIT 0",
}
"""Views whose one stage with a query is the first rows of an order."""
SEEDS: Final = range(40)


def top(sql: str) -> tuple[tuple[Stage, ...], Stage]:
    """Return the stages of a view, and the one with the query."""
    stages = split(plan_view(sql, CATALOG, ListAnalyst()), "view")
    (own,) = [stage for stage in stages if isinstance(stage.plan, Opaque)]
    return stages, own


def holds(sql: str, seeds: Iterable[int] = SEEDS, change: Callable[[Node], Node] = lambda plan: plan) -> bool:
    """Tell whether the stage of a view is, at every time, what the whole query gives at that time."""
    stages, own = top(sql)
    assert isinstance(own.plan, Opaque)
    engine = ListEngine(MemoryBlob(), {own.plan.sql: answer(own.plan)})
    whole = [replace(stage, kind="recompute") if stage is own else stage for stage in stages]
    for seed in seeds:
        tables, cuts = history(seed), sorted(random.Random(seed).sample(range(2, 8), 3))
        try:
            kept = maintained(stages, tables, engine, cuts, change)
        except CollectionError:
            return False
        replayed = maintained(whole, tables, engine, range(cuts[0], 8))
        if any(at(kept, time) != at(replayed, time) for time in range(cuts[0] - 1, cuts[-1])):
            return False
    return True


@pytest.mark.drawn(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_rows_are_those_of_the_whole_query_at_every_time(shape: str) -> None:
    """Damage: a row that comes up is missed, or one that left stays."""
    assert top(SHAPES[shape])[1].kind == "top"
    assert holds(SHAPES[shape])


def test_an_offset_is_recomputed() -> None:
    """Damage: the rows that are skipped are not stored, and those that follow them would come from anywhere."""
    assert top("SELECT k FROM t ORDER BY v LIMIT 3 OFFSET 1")[1].kind == "recompute"


def step(sql: str) -> tuple[Node, Any]:
    """Return the plan of a small change of a view's table, and its look-ups."""
    plan = delta_plan(top(sql)[1], Window(frozenset({"t"}), (0,)))
    assert plan is not None
    return planned(plan)


def test_the_other_rows_are_asked_for_by_stored_rows_that_change() -> None:
    """Damage: each new row reads all the others."""
    plan, lookups = step(SHAPES["rows"])
    stored, *others = lookups
    assert (stored.of, stored.columns) == ("view:old", ("k", "j", "v"))
    assert [place.frame for place in stored.keys] == ["t:delta"]
    assert {(each.of, each.columns) for each in others} == {("t:old", ()), ("view:old", ())}
    assert {place.frame for each in others for place in each.keys} == {stored.frame}
    assert "t:old" not in frames(plan), "all of the others are looked up"


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def _no_others(node: Node) -> Node:
    if isinstance(node, UnionAll) and isinstance(node.inputs[-1], Restrict):
        return replace(node, inputs=node.inputs[:-1])
    return node


def _stored_rows_twice(node: Node) -> Node:
    if isinstance(node, Restrict) and not node.columns and isinstance(node.input, UnionAll):
        return replace(node, input=node.input.inputs[0])
    return node


def _changes_left_out(node: Node) -> Node:
    if isinstance(node, UnionAll) and len(node.inputs) == 3:
        return replace(node, inputs=(node.inputs[0], node.inputs[2]))
    return node


def _negative_counts_are_errors(node: Node) -> Node:
    return replace(node, partial=False) if isinstance(node, Replay) else node


PLANTED: Final[dict[str, Callable[[Node], Node]]] = {
    "nothing moves up": _no_others,
    "stored rows count twice": _stored_rows_twice,
    "changes are left out": _changes_left_out,
    "a row that was not stored and goes is an error": _negative_counts_are_errors,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """Damage: the test of histories would pass whatever the rule does."""
    assert not holds(SHAPES["rows"], change=altered(PLANTED[name]))


def test_taking_the_rows_after_an_offset_for_the_first_ones_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: as above, for what the planner says."""
    opaque = context.Context.opaque

    def wrong(*args: Any, **options: Any) -> Node:
        return opaque(*args, **options | {"top": True})

    monkeypatch.setattr(context.Context, "opaque", wrong)
    assert not holds("SELECT k, v FROM t ORDER BY v LIMIT 3 OFFSET 1")
