"""A step over a bound that moves finds the same updates from the rows between its values as from all rows."""

from __future__ import annotations

import random
from typing import Final

import pytest
from histories import Row, history
from test_narrowing import evaluated, side

from strandline.algebra.nodes import Filter, Get, Node, Project, frames, joined
from strandline.algebra.scalar import columns, scalar
from strandline.algebra.schema import DIFF, TIME
from strandline.compute import lookups
from strandline.compute.rules.linear import updates
from strandline.compute.rules.rule import Window, source

SEEDS: Final = range(60)
WINDOW: Final = Window(frozenset({"s"}), (5, 6))
COMPARISONS: Final = ("`t_v` > `bound`", "`t_v` <= `bound`", "`bound` >= `t_v`", "`bound` < `t_v`")


def view(*conditions: str, wanted: tuple[str, ...] = ("t_k", "t_v")) -> Node:
    """Return the rows of ``t`` that compare with the bound in ``s``."""
    bound = Get("s", (("bound", "v"),))
    rows = Filter(side("t"), scalar("`t_j` >= 1"))
    return Project(joined((rows, bound), map(scalar, conditions)), columns(wanted))


def step(node: Node) -> tuple[Node, Node, list[lookups.Lookup]]:
    """Return the plan of a step in which the bound moves, the same over look-ups, and these."""
    plan = updates(node, WINDOW)
    assert plan is not None
    narrow, found = lookups.planned(plan)
    return plan, narrow, list(found)


def between(rows: list[Row], column: str, keys: list[Row]) -> list[Row]:
    """Return the rows whose column has a value from the least to the greatest of the keys'."""
    ends = [row["v"] for row in keys]
    return [row for row in rows if row[column] is not None and min(ends) <= row[column] <= max(ends)]


def same(seed: int) -> tuple[bool, int]:
    """Tell whether a step finds the same either way, and how many rows were left out."""
    chance = random.Random(seed)
    whole, narrow, (found,) = step(view(chance.choice(COMPARISONS)))
    assert found.span
    values = [chance.choice([1, 2, 3]) for _ in range(3)]
    moved = [{"v": values[n + after], TIME: 5 + n, DIFF: diff} for n in range(2) for after, diff in ((0, -1), (1, 1))]
    rows = [row | {TIME: 5} for row in history(seed)["t"]]
    few = between(rows, *found.columns, moved)
    all_rows = {name: moved if source(name)[0] == "s" else rows for name in frames(whole)}
    return evaluated(narrow, {"s:delta": moved, found.frame: few}) == evaluated(whole, all_rows), len(rows) - len(few)


def test_no_update_is_lost_with_the_rows_outside_of_the_span() -> None:
    """Damage: a view lacks rows that a bound has passed, or keeps them."""
    found = {seed: same(seed) for seed in SEEDS}
    assert [seed for seed, (right, _) in found.items() if not right] == []
    assert sum(left_out for _, left_out in found.values()) > len(SEEDS), "the test is about rows that are left out"


def _without_ends(rows: list[Row], column: str, keys: list[Row]) -> list[Row]:
    ends = [row["v"] for row in keys]
    return [row for row in rows if row[column] is not None and min(ends) < row[column] < max(ends)]


def _of_the_last(rows: list[Row], column: str, keys: list[Row]) -> list[Row]:
    return _between(rows, column, keys[2:])


_between = between


@pytest.mark.parametrize("bug", [_without_ends, _of_the_last], ids=["the ends are left out", "one time counts"])
def test_a_span_that_is_too_small_is_noticed(bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a test that cannot fail."""
    monkeypatch.setitem(globals(), "between", bug)
    assert not all(same(seed)[0] for seed in SEEDS)


def test_a_bound_that_is_handed_on_is_met_by_every_row() -> None:
    """Damage: rows of which only the bound beside them changes keep its old value."""
    assert not any(each.span for each in step(view("`t_v` > `bound`", wanted=("t_k", "bound")))[2])
    assert not any(each.span for each in step(view("`t_v` > `bound`", "`t_j` < `bound` + 1"))[2])
