"""One planted defect per rule: what the comparison with Spark's own answers must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from strandline.algebra.nodes import NOTHING, Accumulate, Node, Project, Regroup, Replay, with_frames
from strandline.compute.rules.phase import Phase, Window, frame, source
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
