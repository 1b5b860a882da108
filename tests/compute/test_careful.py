"""Careful plans: the ok half is the query without the offending rows, and each of these is an error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from strandline.algebra.careful import careful
from strandline.algebra.nodes import Aggregate, Filter, Get, Join, Negate, Node, Project, Reduce, UnionAll, joined
from strandline.algebra.scalar import columns, scalar
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.compute.rules.linear import updates
from strandline.compute.rules.rule import Phase, Window, frame
from strandline.testing.lists.list_plans import Plans

Frames = Mapping[str, Sequence[dict[str, Any]]]
T = Get("t", (("a", "a"), ("b", "b")))
U = Get("u", (("c", "c"), ("d", "d")))
ROWS = {
    "t": [{"a": a, "b": b} for a, b in [(6, 1), (6, 2), (6, 0), (4, None), (5, 3)]],
    "u": [{"c": c, "d": d} for c, d in [(6, 1), (3, 0), (3, 2), (None, 3)]],
}


def _at(rows: Frames, time: int = 0) -> dict[str, list[dict[str, Any]]]:
    return {name: [{TIME: time, DIFF: 1} | row for row in held] for name, held in rows.items()}


def _result(node: Node, frames: Frames) -> Counter[tuple[Any, ...]]:
    """Return what the updates of ``node`` add up to."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in Plans(frames, {}, 0).updates(node):
        found[tuple(row[name] for name in node.names)] += row[DIFF]
    return Counter({row: count for row, count in found.items() if count})


def _halves(node: Node, rows: Frames = ROWS) -> tuple[Counter[tuple[Any, ...]], list[dict[str, Any]]]:
    """Return the ok half of ``node``, and the rows of its errors."""
    ok, errors = careful(node, "v")
    counted: Counter[tuple[Any, ...]] = Counter()
    for each in errors:
        counted.update(_result(each, _at(rows)))
    assert all(count >= 0 for count in counted.values()), "an error is there less often than never"
    failed = [json.loads(text) for (text,) in counted.elements()]
    assert all(error["collection"] == "v" for error in failed)
    return _result(ok, _at(rows)), sorted((error["row"] for error in failed), key=repr)


def test_a_projected_column_that_fails_takes_its_row_away() -> None:
    """Damage: one bad row hides all others, or shows up half."""
    ok, failed = _halves(Project(T, (("x", scalar("a DIV b")),)))
    assert ok == {(6,): 1, (3,): 1, (None,): 1, (1,): 1}
    assert failed == [{"a": 6, "b": 0}]


def test_a_column_that_nothing_uses_fails_on_no_row() -> None:
    """Damage: a view reports rows for an expression that its answer does not contain."""
    inner = Project(T, (("x", scalar("a DIV b")), ("a", scalar("a"))))
    ok, failed = _halves(Project(inner, (("a", scalar("a")),)))
    assert (ok[6,], failed) == (3, [])


@pytest.mark.parametrize(
    "condition", ["b <> 0 AND a DIV b > 2", "a DIV b > 2 AND b <> 0", "NOT (a DIV b <= 2 OR b = 0)"]
)
def test_a_row_is_out_if_any_condition_is_false_in_whatever_order(condition: str) -> None:
    """Damage: whether a view has an answer depends on the order in which Spark evaluates its WHERE."""
    assert _halves(Filter(T, scalar(condition))) == (Counter({(6, 1): 1, (6, 2): 1}), [])
    assert _halves(Filter(Filter(T, scalar("a DIV b > 2")), scalar("b <> 0"))) == (Counter({(6, 1): 1, (6, 2): 1}), [])


@pytest.mark.parametrize(
    ("condition", "rows", "errors"),
    [
        ("a DIV b > 2 OR b = 0", [(6, 0), (6, 1), (6, 2)], []),
        ("b = 0 OR a DIV b > 2", [(6, 0), (6, 1), (6, 2)], []),
        ("a DIV b > 2 OR b = 1", [(6, 1), (6, 2)], [(6, 0)]),
        ("NOT (a DIV b > 2 AND b = 1)", [(5, 3), (6, 0), (6, 2)], []),
        ("a DIV b > 2 AND b IS NULL", [], []),
        ("b BETWEEN a DIV b AND 2", [], [(6, 0)]),
        ("b BETWEEN 1 AND a DIV b", [(6, 1), (6, 2)], []),
        ("CASE WHEN a DIV b > 2 THEN b <> 0 ELSE false END", [(6, 1), (6, 2)], []),
        ("CASE WHEN b <> 0 THEN a DIV b > 2 ELSE true END", [(4, None), (6, 0), (6, 1), (6, 2)], []),
    ],
)
def test_logic_is_judged_without_an_order(condition: str, rows: list[Any], errors: list[tuple[int, int]]) -> None:
    """Damage: a term that does not matter makes an error, or one that matters is passed over."""
    ok, failed = _halves(Filter(T, scalar(condition)))
    assert (sorted(ok, key=repr), [(row["a"], row["b"]) for row in failed]) == (sorted(rows, key=repr), errors)


def test_a_value_of_a_row_that_is_out_fails_nothing() -> None:
    """Damage: a filter above a projection, or a CASE above one, reports the very rows that its author left out."""
    computed = Project(T, (("b", scalar("b")), ("x", scalar("a DIV b"))))
    assert _halves(Filter(computed, scalar("b <> 0")))[1] == []
    assert _halves(Project(computed, (("y", scalar("CASE WHEN b <> 0 THEN x END")),)))[1] == []
    nested = Filter(
        Project(Filter(T, scalar("b <> 0")), (("b", scalar("b")), ("x", scalar("a DIV b")))), scalar("x > 2")
    )
    assert _halves(nested) == (Counter({(1, 6): 1, (2, 3): 1}), [])
    union = UnionAll((computed, Project(U, (("c", scalar("c")), ("y", scalar("12 DIV (c - 6)"))))))
    assert _halves(Filter(union, scalar("b BETWEEN 1 AND 5")))[1] == []


def test_a_pair_is_out_if_its_keys_differ() -> None:
    """Damage: a row fails a view that it has no part in; or whether it does depends on what a look-up finds."""
    fails_alone = (scalar("b = d"), scalar("12 DIV b > 1"))
    partners = {"t": ROWS["t"], "u": [row for row in ROWS["u"] if row["d"]]}
    assert _halves(joined((T, U), fails_alone), partners)[1] == []
    assert _halves(joined((T, U), fails_alone))[1] == [{"a": 6, "b": 0}], "the row with d = 0 is its partner"


def test_a_key_that_fails_is_an_error_for_each_row_that_it_may_meet() -> None:
    """Damage: a row without a key is dropped in silence, or the join becomes a cross product."""
    ok, failed = _halves(joined((T, U), (scalar("a DIV b = c"),)))
    assert failed == [{"a": 6, "b": 0}] * len(ROWS["u"])
    assert ok == {(6, 1, 6, 1): 1, (6, 2, 3, 0): 1, (6, 2, 3, 2): 1}
    assert _halves(joined((T, U), (scalar("a DIV b = c"),)), {**ROWS, "u": []})[1] == []
    assert _halves(joined((T, U), (scalar("a DIV b = c"), scalar("d = 3"))))[1] == [{"a": 6, "b": 0}]
    plan, _ = careful(joined((T, U), (scalar("a DIV b = c"),)), "v")
    assert isinstance(plan, Project)
    assert isinstance(plan.input, Join)
    assert [type(each.tree).__name__ for each in plan.input.conditions] == ["EQ"]


def test_both_keys_of_a_pair_may_fail() -> None:
    """Damage: a pair of which neither key is known is reported twice, or not at all."""
    _, failed = _halves(joined((T, U), (scalar("a DIV b = c DIV d"),)))
    assert failed == [{"a": 6, "b": 0}] * len(ROWS["u"]) + [{"c": 3, "d": 0}] * (len(ROWS["t"]) - 1)


def test_a_row_that_is_taken_away_again_takes_its_errors_along() -> None:
    """Damage: an anti join fails on the rows that it drops."""
    left = Project(T, (("b", scalar("b")), ("x", scalar("`a` DIV `b`"))))
    dropped = Negate(
        Project(joined((left, Project(U, (("d", scalar("d")),))), (scalar("b = d"),)), columns(left.names))
    )
    one_each = {"t": ROWS["t"], "u": [{"c": 0, "d": 0}]}
    assert _halves(UnionAll((left, dropped)), one_each)[1] == []
    assert _halves(UnionAll((left, dropped)), {**one_each, "u": []})[1] == [{"a": 6, "b": 0}]


def test_a_row_that_may_be_taken_away_is_an_error() -> None:
    """Damage: a row that may or may not find a match counts as one that finds none."""
    matched = joined((T, Project(U, (("d", scalar("d")),))), (scalar("b = d"), scalar("a DIV b > 0")))
    kept = UnionAll((T, Negate(Project(matched, columns(T.names)))))
    assert _halves(kept, {"t": ROWS["t"], "u": [{"c": 0, "d": 0}]})[1] == [{"a": 6, "b": 0}]


def test_how_many_rows_a_generator_makes_is_an_error_where_the_row_is_needed() -> None:
    """Damage: a row fails a view that it has no part in, or is left out without any message."""
    made = Project(T, (("b", scalar("b")), ("x", scalar("explode(sequence(1, a DIV b))"))))
    partners = {"t": ROWS["t"], "u": [row for row in ROWS["u"] if row["d"]]}
    met = joined((made, U), (scalar("b = d"),))
    ok, failed = _halves(met, partners)
    assert (sum(ok.values()), failed) == (10, []), "6 of (6, 1), 3 of (6, 2), 1 of (5, 3)"
    assert _halves(met)[1] == [{"a": 6, "b": 0}], "the row with d = 0 is its partner"
    assert _halves(Filter(met, scalar("c <> 3")))[1] == []
    assert _halves(Filter(met, scalar("x > 7 AND c = 3")))[1] == [{"a": 6, "b": 0}]
    again = Project(met, (("d", scalar("d")), ("y", scalar("explode(sequence(1, x))"))))
    assert _halves(joined((again, Get("u", (("e", "d"),))), (scalar("d = e"),)))[1] == [{"a": 6, "b": 0}]
    below = Project(Filter(T, scalar("a DIV b > 0")), (("b", scalar("b")), ("x", scalar("explode(sequence(1, a))"))))
    assert _halves(joined((below, U), (scalar("b = d"),)), partners)[1] == []
    assert _halves(joined((below, U), (scalar("b = d"),)))[1] == [{"a": 6, "b": 0}]


def test_a_condition_over_both_sides_fails_on_pairs() -> None:
    """Damage: a pair that has no answer is left out without any message."""
    ok, failed = _halves(joined((T, U), (scalar("a = c"), scalar("b <> 2"), scalar("a DIV (b - d) > 0"))))
    assert failed == [{"a": 6, "b": 1, "c": 6, "d": 1}]
    assert ok == {}


def test_keys_and_arguments_of_groups_are_tried() -> None:
    """Damage: one bad row takes its whole group, or the whole view, away."""
    total = Aggregate("n", "count", None, distinct=False, type="bigint", argument_type="bigint")
    largest = Aggregate("m", "max", scalar("12 DIV a"), distinct=False, type="int", argument_type="int")
    ok, failed = _halves(Reduce(T, (("k", scalar("a DIV b")),), (total, largest)))
    assert ok == {(6, 1, 2): 1, (3, 1, 2): 1, (None, 1, 3): 1, (1, 1, 2): 1}
    assert failed == [{"a": 6, "b": 0}]


def test_each_branch_of_a_union_reports_its_own_rows() -> None:
    """Damage: the errors of one branch hide those of another."""
    left = Project(T, (("x", scalar("a DIV b")), ("unused", scalar("b DIV 0"))))
    right = Project(U, (("y", scalar("c DIV d")), ("z", scalar("1 DIV 0"))))
    ok, failed = _halves(Project(UnionAll((left, right)), (("x", scalar("x")),)))
    assert failed == [{"a": 6, "b": 0}, {"c": 3, "d": 0}]
    assert sum(ok.values()) == 7


@pytest.mark.parametrize(
    "plan",
    [
        Filter(T, scalar("12 DIV b > 5")),
        joined((T, U), (scalar("a DIV b = c"),)),
        joined((T, U), (scalar("b = d"), scalar("a DIV (c - 3) > 0"))),
        Project(joined((T, U), (scalar("b = d"),)), (("x", scalar("a DIV c")), ("y", scalar("c DIV d")))),
    ],
)
def test_both_halves_have_exact_updates(plan: Node) -> None:
    """Damage: an error outlives its row, or a row that was mended is missing, in a view that is kept by changes."""
    for ok_or_error in (careful(plan, "v")[0], *careful(plan, "v")[1]):
        delta = updates(ok_or_error, Window(frozenset({"t", "u"}), (1,)))
        assert delta is not None
        change = {
            "t": [{"a": 6, "b": 0, DIFF: -1}, {"a": 9, "b": 0, DIFF: 1}, {"a": 9, "b": 3, DIFF: 1}],
            "u": [{"c": 3, "d": 0, DIFF: -1}, {"c": 3, "d": 3, DIFF: 2}],
        }
        old, changed = _at(ROWS), {name: [{TIME: 1} | row for row in rows] for name, rows in change.items()}
        new = {name: old[name] + changed[name] for name in old}
        phases = {Phase.OLD: old, Phase.DELTA: changed, Phase.NEW: new}
        frames = {frame(name, phase): rows[name] for phase, rows in phases.items() for name in rows}
        moved = _result(ok_or_error, old)
        moved.update(_result(delta, frames))
        assert Counter({row: n for row, n in moved.items() if n}) == _result(ok_or_error, new)


def test_a_plan_without_expressions_stays_as_it_is() -> None:
    """Damage: views that cannot fail pay for being careful."""
    plan = Project(joined((T, U), (scalar("`a` = `c`"),)), columns(["a", "d"]))
    assert careful(plan, "v") == (plan, ())
    assert ERROR not in plan.names
