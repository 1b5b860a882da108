"""A step finds the same updates from the first rows of what it looks up as from all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from histories import CATALOG, answer, at, history, maintained

from strandline.algebra.nodes import First, Opaque, Order, Reduce
from strandline.algebra.schema import DIFF, TIME
from strandline.compute import lookups
from strandline.compute.plan.view import plan_view
from strandline.compute.rules import regroup
from strandline.compute.rules.rule import Window
from strandline.compute.stage import Stage, delta_plan, split
from strandline.errors import CollectionError
from strandline.store.memory import MemoryBlob
from strandline.testing.lists import list_engine
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine

SHAPES: Final = {
    "the first rows": "SELECT k, v, j FROM t ORDER BY v DESC, k LIMIT 3",
    "the first rows, nulls last": "SELECT k, v, j FROM t ORDER BY v NULLS LAST, j LIMIT 2",
    "the first rows of a union": "SELECT k, v FROM t UNION ALL SELECT j, v FROM u ORDER BY v LIMIT 5",
    "the first of each": "SELECT k, v FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC) <= 2",
    "the first ranks of each": "SELECT k, j, v, row_number() OVER (PARTITION BY k ORDER BY v NULLS LAST) AS n FROM t "
    "QUALIFY rank() OVER (PARTITION BY k ORDER BY v NULLS LAST) < 3 AND j > 1",
    "the first by two columns": "SELECT k, j, v FROM t QUALIFY row_number() OVER (PARTITION BY k, j ORDER BY v) = 2",
    "the greatest": "SELECT k, max(v) AS m FROM t GROUP BY k",
    "the greatest and the least": "SELECT k, max(v) AS m, min(j) AS n, min(v) AS o FROM t GROUP BY k",
    "the greatest by two columns": "SELECT k, j, max(v) AS m FROM t GROUP BY k, j",
    "the greatest of a union": "SELECT k, max(v) AS m FROM (SELECT k, v FROM t UNION ALL SELECT j, v FROM u) "
    "GROUP BY k",
    "the greatest of all": "SELECT max(v) AS m, min(j) AS n FROM t",
}
"""Views whose last stage looks up first rows."""
WHOLE: Final = {
    "rows of a filter": "SELECT k, v, j FROM t WHERE v > 1 ORDER BY v DESC, k LIMIT 3",
    "an order that is computed": "SELECT k, v FROM t ORDER BY v * 2 - k LIMIT 2",
    "groups of a filter": "SELECT k, max(v) AS m FROM t WHERE j > 1 GROUP BY k",
    "all of a filter": "SELECT max(v) AS m FROM t WHERE j > 2",
    "the first of each that a filter leaves": "SELECT k, v FROM t WHERE j > 1 "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC) <= 2",
    "another window": "SELECT k, v, count(*) OVER (PARTITION BY k) AS n FROM t "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) <= 2",
    "another order": "SELECT k, v, rank() OVER (PARTITION BY k ORDER BY j) AS n FROM t "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) <= 2",
    "an order that continues the partition": "SELECT k, j, v, rank() OVER (PARTITION BY k ORDER BY j, v) AS n FROM t "
    "QUALIFY row_number() OVER (PARTITION BY k, j ORDER BY v) <= 2",
    "part of the key": "SELECT k, j, v, rank() OVER (PARTITION BY k ORDER BY v) AS n FROM t "
    "QUALIFY row_number() OVER (PARTITION BY k, j ORDER BY v) <= 2",
    "the last of each": "SELECT k, v FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) >= 2",
    "dense ranks": "SELECT k, v FROM t QUALIFY dense_rank() OVER (PARTITION BY k ORDER BY v) <= 2",
    "other aggregates": "SELECT k, max(v) AS m, count(*) AS n FROM t GROUP BY k",
    "a value that is computed": "SELECT k, max(v + j) AS m FROM t GROUP BY k",
    "a group that is computed": "SELECT k + j AS l, max(v) AS m FROM t GROUP BY k + j",
    "groups of a join": "SELECT t.k, max(u.v) AS m FROM t JOIN u ON t.j = u.j GROUP BY t.k",
}
"""Views of which more than the first rows matter."""
SEEDS: Final = range(10)


def staged(sql: str) -> tuple[Stage, ...]:
    """Return the stages of a view."""
    return split(plan_view(sql, CATALOG, ListAnalyst()), "view")


def own(stages: Sequence[Stage]) -> Stage:
    """Return the stage that is about the first rows."""
    return next((stage for stage in stages if isinstance(stage.plan, Opaque)), stages[-1])


def asked(stage: Stage) -> list[First]:
    """Return what a step of a stage wants the first rows of."""
    plan = delta_plan(stage, Window(frozenset(stage.inputs), (0,)))
    assert plan is not None
    return [each.first for each in lookups.planned(plan)[1] if each.first is not None]


def holds(sql: str, seeds: Sequence[int] = SEEDS) -> bool:
    """Tell whether a stage of a view is the same at every time, whatever is looked up."""
    stages = staged(sql)
    last = own(stages)
    queries = {last.plan.sql: answer(last.plan)} if isinstance(last.plan, Opaque) else {}
    engine = ListEngine(MemoryBlob(), queries)
    for seed in seeds:
        tables, cuts = history(seed, 9), sorted(random.Random(seed).sample(range(2, 8), 3))
        try:
            kept = maintained(stages, tables, engine, cuts, own=last)
        except CollectionError:
            return False
        for time in range(cuts[0] - 1, cuts[-1]):
            until = {name: [row for row in rows if row[TIME] <= time] for name, rows in tables.items()}
            if at(kept, time) != at(maintained(stages, until, engine, (8,), own=last), 8):
                return False
    return True


@pytest.mark.parametrize("shape", SHAPES)
def test_no_update_is_lost_with_the_rows_that_come_later(shape: str) -> None:
    """Damage: a row that comes up is missed, when one before it goes."""
    assert asked(own(staged(SHAPES[shape])))
    assert holds(SHAPES[shape])


@pytest.mark.parametrize("shape", WHOLE)
def test_where_a_later_row_may_matter_all_are_read(shape: str) -> None:
    """Damage: a filter takes the first rows, and none is left; or a count is one of them alone."""
    assert not [each for stage in staged(WHOLE[shape]) for each in asked(stage)]
    assert holds(WHOLE[shape])


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def _no_more(rows: Sequence[list_engine.Row], first: First, more: int) -> list[list_engine.Row]:
    """Forget the rows that go."""
    return FOUND(rows, first, 0)


def _without_ties(rows: Sequence[list_engine.Row], first: First, more: int) -> list[list_engine.Row]:
    """Take as many rows as are asked for, and none that ties with the last."""
    kept, before = [], 0
    for row in FOUND(rows, first, more):
        if before < first.rows + more:
            kept.append(row)
        before += row[DIFF]
    return kept


def _for_all(self: First, names: Any) -> First:
    """Take the first rows by another column for those by one that is computed."""
    known = [names.get(each.column) or next(filter(None, names.values())) for each in self.orders]
    return First(tuple(replace(each, column=own) for each, own in zip(self.orders, known, strict=True)), self.rows)


def _of_any(node: Reduce) -> First | None:
    """Take the first rows for all that other aggregates look at."""
    found = [each for each in node.aggregates if each.function in ("min", "max")]
    return REGROUP(replace(node, aggregates=tuple(found)))


FOUND, REGROUP = list_engine.first_rows, regroup._first
PLANTED: Final = {
    "rows that go are not made up for": (list_engine, "first_rows", _no_more, "the greatest"),
    "rows that tie are left out": (list_engine, "first_rows", _without_ties, "the first rows"),
    "nulls are at the other end": (regroup, "Order", lambda *given, **_: Order(*given), "the greatest"),
    "a computed order is any order": (First, "renamed", _for_all, "an order that is computed"),
    "other aggregates look at the first rows": (regroup, "_first", _of_any, "other aggregates"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a law that cannot fail."""
    where, what, bug, shape = PLANTED[name]
    monkeypatch.setattr(where, what, bug)
    assert not holds({**SHAPES, **WHOLE}[shape])
