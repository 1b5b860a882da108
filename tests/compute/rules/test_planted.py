"""One planted defect per rule: what the comparison with Spark's own answers must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from sqlglot import exp

from strandline.algebra.nodes import (
    NOTHING,
    Accumulate,
    Filter,
    Get,
    Negate,
    Node,
    Project,
    Regroup,
    Replay,
    rebuilt,
    with_frames,
)
from strandline.algebra.scalar import Scalar, binary, scalar
from strandline.compute.plan import matching
from strandline.compute.plan.subqueries import Subqueries
from strandline.compute.rules.rule import Phase, Window, frame, source
from strandline.compute.stage import Stage, delta_plan
from strandline.engine.sql import grouping

Sabotage = Callable[[Node], Node]


def _wrong_phase(node: Node) -> Node:
    """Meet old sides on both hands of Δ: changes of two inputs that meet in one window are lost."""
    return with_frames(node, lambda name: frame(source(name)[0], Phase.OLD) if source(name)[1] is Phase.NEW else name)


def _forget(kind: type) -> Sabotage:
    """Take the stored output for empty: nothing of it is withdrawn, nothing of it carried on."""

    def sabotage(node: Node) -> Node:
        if isinstance(node, Project):
            return replace(node, input=sabotage(node.input))
        return replace(node, prior=NOTHING) if isinstance(node, kind) else node  # type: ignore[type-var]

    return sabotage


def _never_taken_back(node: Node) -> Node:
    """Forget the terms that withdraw: rows padded with NULLs stay beside the match that came."""
    return Filter(node.input, scalar("false")) if isinstance(node, Negate) else rebuilt(node, _never_taken_back)


def _matches_as_they_were(node: Node) -> Node:
    """See who finds a match by what was so before the window: nothing appears or disappears in it."""
    if isinstance(node, Get) and source(node.frame)[0].startswith("accumulate"):
        if source(node.frame)[1] is Phase.DELTA:
            return Filter(node, scalar("false"))
        return replace(node, frame=frame(source(node.frame)[0], Phase.OLD))
    return rebuilt(node, _matches_as_they_were)


_LEFT: Final = "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON s.shop = h.shop"
_NOT_EXISTS: Final = "SELECT qty FROM sales s WHERE NOT EXISTS (SELECT 1 FROM shops h WHERE h.shop = s.shop)"

DEFECTS: Final[dict[str, tuple[str, Sabotage]]] = {
    "a join term with the wrong phase": (
        "SELECT s.qty, p.kind FROM sales s JOIN products p ON s.product = p.product",
        _wrong_phase,
    ),
    "a regroup that forgets to withdraw": ("SELECT shop, max(qty) AS m FROM sales GROUP BY shop", _forget(Regroup)),
    "an accumulate that forgets what it kept": (
        "SELECT shop, count(*) AS n FROM sales GROUP BY shop",
        _forget(Accumulate),
    ),
    "a left join with a term in the wrong phase": (_LEFT, _wrong_phase),
    "padding that is never withdrawn": (_LEFT, _never_taken_back),
    "a match whose coming and going no row shows": (_LEFT, _matches_as_they_were),
    "an absence whose end no row shows": (_NOT_EXISTS, _matches_as_they_were),
    "a recompute that forgets to withdraw": ("SELECT shop FROM sales ORDER BY shop LIMIT 2", _forget(Replay)),
}


def _differs(laboratory: Any, sql: str, sabotage: Sabotage) -> bool:
    """Tell whether the comparison at every time notices the sabotage."""
    history = laboratory.history(7)
    want = laboratory.answers(sql, history)

    def plan(stage: Stage, window: Window) -> Node | None:
        node = delta_plan(stage, window)
        return node if node is None or window.first else sabotage(node)

    try:
        found = laboratory.maintain(sql, history, (2, 4, 6), plan=plan)
    except AssertionError:
        return True  # a negative count
    return any(laboratory.rounded(held) != laboratory.rounded(want[time]) for time, held in found.items())


@pytest.mark.spark
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_noticed_and_its_absence_is_not(name: str, laboratory: Any) -> None:
    """Damage: the oracle tests would pass whatever the rules do."""
    sql, sabotage = DEFECTS[name]
    assert _differs(laboratory, sql, sabotage)
    assert not _differs(laboratory, sql, lambda node: node)


@pytest.mark.spark
def test_a_null_key_compared_by_equality_is_noticed(laboratory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: groups whose key is NULL would never be withdrawn."""
    same = grouping._same
    monkeypatch.setattr(grouping, "_same", lambda *of: same(*of).replace("<=>", "="))
    assert _differs(laboratory, "SELECT shop, count(*) AS n FROM sales GROUP BY shop", lambda node: node)


def _in_spite_of_nulls(self: Subqueries, value: Scalar, rows: Any, _: str) -> None:
    """Take NOT IN for NOT EXISTS: NULL on either side is just no match."""
    same = Scalar(binary(exp.EQ, value.tree, rows.outputs[0]))
    self._matched(rows.node, (same,), negated=True)


def _every_match(context: Any, node: Node, keys: matching.Columns) -> Node:
    """Let each matching row count, not each that is there at all."""
    return Project(node, keys)


def _nothing_is_null(_: str, *arguments: exp.Expr) -> exp.Expr:
    """Leave the count of nothing NULL."""
    return arguments[0]


PLANS: Final[dict[str, tuple[str, str, Any]]] = {
    "NOT IN without its NULLs": (
        "SELECT qty FROM sales WHERE shop NOT IN (SELECT shop FROM shops WHERE size = 1)",
        "strandline.compute.plan.subqueries.Subqueries._not_in",
        _in_spite_of_nulls,
    ),
    "a match for each row that matches": (
        "SELECT product FROM products WHERE product IN (SELECT product FROM sales)",
        "strandline.compute.plan.matching._distinct",
        _every_match,
    ),
    "a count of nothing that is NULL": (
        "SELECT city, (SELECT count(*) FROM sales s WHERE s.shop = h.shop AND qty = 3) AS n FROM shops h",
        "strandline.compute.plan.subqueries.call",
        _nothing_is_null,
    ),
}


@pytest.mark.spark
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PLANS)
def test_a_planted_mistake_of_the_planner_is_noticed(
    name: str, laboratory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the oracle tests would pass whatever a subquery is taken for."""
    sql, place, wrong = PLANS[name]
    laboratory.forget(sql)
    with monkeypatch.context() as patched:
        patched.setattr(place, wrong)
        assert _differs(laboratory, sql, lambda node: node)
    laboratory.forget(sql)
    assert not _differs(laboratory, sql, lambda node: node)
