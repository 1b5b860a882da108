"""What a view stores of its own parts, so that its steps stay small, changes nothing that it holds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from house import INPUTS, LAST, House, history_of
from random_plans import RandomPlans

from strandline.algebra.nodes import Project, UnionAll, joined
from strandline.algebra.scalar import columns, scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.explain import explain
from strandline.compute.plan import asked
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.compute.stage import split
from strandline.testing.lists.list_assembly import ListAnalyst


def layered(seed: int) -> PlannedView:
    """Return a view of three layers over a random join, each of which reads the one below twice."""
    plans = RandomPlans(random.Random(seed))
    node = plans.paired(1)
    for _ in range(3):
        other = plans.given()
        same = scalar(f"{plans.one(node, 'string')} = {plans.one(other, 'string')}")
        node = UnionAll((node, Project(joined((node, other), (same,)), columns(node.names))))
    schema = Schema(tuple(Column(name, plans.types[name]) for name in node.names))
    return PlannedView(node, schema, tuple(INPUTS), "", plans.types)


def kept(view: PlannedView, seed: int) -> list[tuple[Counter[Any], bool]]:
    """Return the rows of a view at each time of a history, kept in random steps, and whether it has errors."""
    chance, house, lower = random.Random(f"steps {seed}"), House({"v": view}), 0
    while lower <= LAST:
        upper = min(LAST + 1, lower + chance.randint(1, 3))
        house.write(history_of(seed), lower, upper)
        if chance.random() < 0.2:
            house.open()
        house.tick(upper)
        lower = upper
    halves = [house.at("v", time) for time in range(LAST + 1)]
    return [(rows, bool(errors)) for rows, errors in halves]


@pytest.mark.parametrize("seed", [0, 2, 3, 5, 6])
def test_a_view_holds_the_same_whatever_it_stores_of_its_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a stored part misses updates, or counts them twice, and the view drifts for ever."""
    monkeypatch.setattr(asked, "STEP_NODES_STORED", 0)
    view = layered(seed)
    stored = replace(view, parts=asked.shared_parts(view.plan, lambda _: True))
    assert len(split(stored, "v")) == len(split(view, "v")) + len(stored.parts) >= 2
    assert kept(stored, seed) == kept(view, seed)


LAYERED = (
    "WITH a AS (SELECT t.k, t.n, u.m FROM t JOIN u ON t.k = u.k),"
    " b AS (SELECT a.k, a.n, u.m FROM a LEFT JOIN u ON a.n = u.m)"
    " SELECT b.k, b.m, t.n FROM b LEFT JOIN t ON b.m = t.n"
)


def test_a_view_says_what_it_stores_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `explain` does not say why a view writes more than its rows."""
    whole = plan_view(LAYERED, INPUTS, ListAnalyst())
    assert whole.parts == ()
    monkeypatch.setattr(asked, "STEP_NODES_STORED", 0)
    view = plan_view(LAYERED, INPUTS, ListAnalyst())
    assert view.parts
    told = str(explain(view, split(view, "v")))
    assert f"note: {len(view.parts)} of its parts are stored by themselves" in told
    assert told.count("(state kept)") > str(explain(whole, split(whole, "v"))).count("(state kept)")
    for seed in range(3):
        assert kept(view, seed) == kept(whole, seed)
