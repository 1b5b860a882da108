"""Rows that an expression fails on, under views of every kind: at each time right, or an error; healed when they leave.

All of it over lists: the laws of a step, with no Spark in the way.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from house import LAST, House, Row, held_at, history_of

from strandline.algebra.nodes import Aggregate, Filter, Get, Node, Opaque, Project, Reduce, joined
from strandline.algebra.scalar import columns, scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import PlannedView
from strandline.compute.sink.correction import Updates
from strandline.compute.tick import tick
from strandline.errors import EvaluationError, Unsettled
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Rows
from strandline.testing.doubles import in_turn
from strandline.testing.simulation.kernel import run_sync

T = Get("t", (("k", "k"), ("n", "n")))
U = Get("u", (("j", "k"), ("m", "m")))
QUOTIENT = scalar("12 DIV n")
TYPES = {"k": "string", "j": "string", "n": "bigint", "m": "bigint", "q": "bigint", "s": "bigint", "c": "bigint"}
QUERY = "the largest quotient"


def _schema(*names: str) -> Schema:
    return Schema(tuple(Column(name, TYPES[name]) for name in names))


def _view(plan: Node, *imports: str) -> PlannedView:
    return PlannedView(plan, _schema(*plan.names), imports, "", TYPES)


def _largest(relations: Mapping[str, Sequence[dict[str, Any]]]) -> Iterable[Row]:
    rows = relations["t"]
    if any(row["n"] == 0 for row in rows):
        raise EvaluationError("a row cannot be evaluated: DIVIDE_BY_ZERO: division by zero")
    return [(max(12 // row["n"] for row in rows),)] if rows else []


COUNT = Aggregate("c", "count", None, distinct=False, type="bigint", argument_type="bigint")
SUM = Aggregate("s", "sum", QUOTIENT, distinct=False, type="bigint", argument_type="bigint")
MAX = Aggregate("s", "max", QUOTIENT, distinct=False, type="bigint", argument_type="bigint")
JOINED = Filter(joined((T, U), (scalar("k = j"),)), scalar("n DIV m >= 0"))
VIEWS = {
    "linear": _view(Project(Filter(T, scalar("12 DIV n > 1")), (("k", scalar("k")), ("q", QUOTIENT))), "t"),
    "join": _view(Project(JOINED, columns(["k", "n", "m"])), "t", "u"),
    "sum": _view(Reduce(T, columns(["k"]), (COUNT, SUM)), "t"),
    "max": _view(Reduce(T, columns(["k"]), (MAX,)), "t"),
    "largest": _view(Opaque((T,), ("t",), QUERY, ("q",), "no rule"), "t"),
    "above": _view(Project(Get("sum", (("k", "k"), ("s", "s"))), columns(["k", "s"])), "sum"),
}
QUERIES = {QUERY: _largest}


def _truth(name: str, held: Mapping[str, Counter[Row]]) -> tuple[Counter[Row], int]:
    """Return the rows of a view over the inputs' rows, and how many errors it has besides."""
    t, u = held["t"], held["u"]
    good = Counter({row: count for row, count in t.items() if row[1]})
    bad = sum(t.values()) - sum(good.values())
    match name:
        case "linear":
            return _counted(((k, 12 // n), c) for (k, n), c in good.items() if 12 // n > 1), bad
        case "join":
            pairs = [(k, n, m, c * d) for (k, n), c in t.items() for (j, m), d in u.items() if j == k]
            failed = sum(count for _, _, m, count in pairs if not m)
            return _counted(((k, n, m), count) for k, n, m, count in pairs if m), failed
        case "max":
            return Counter({(k, max(12 // n for j, n in good if j == k)): 1 for k in {k for k, _ in good}}), bad
        case "largest":
            return Counter([(max(12 // n for _, n in good),)] if good and not bad else []), int(bad > 0)
        case _:
            groups = {k: [(12 // n, c) for (j, n), c in good.items() if j == k] for k, _ in good}
            sums = {k: (sum(c for _, c in held), sum(q * c for q, c in held)) for k, held in groups.items()}
            rows = [(k, c, s) if name == "sum" else (k, s) for k, (c, s) in sums.items()]
            return Counter(rows), bad


def _counted(rows: Iterable[tuple[Row, int]]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, count in rows:
        found[row] += count
    return found


@pytest.mark.parametrize("seed", range(40))
def test_at_every_time_each_view_is_right_or_has_the_error_that_is_there(seed: int) -> None:
    """Damage: one bad row stops a view for ever, hides good rows, or stays an error when it is gone."""
    chance = random.Random(seed)
    history = history_of(seed)
    house = House(VIEWS, QUERIES)
    lower = 0
    while lower <= LAST:
        upper = lower + 1 if lower == 0 else min(LAST + 1, lower + chance.randint(1, 3))
        house.write(history, lower, upper)
        if chance.random() < 0.3:
            house.open()
        house.tick(upper)
        lower = upper
    for name in VIEWS:
        for time in range(LAST + 1):
            rows, errors = house.at(name, time)
            assert (rows, sum(errors.values())) == _truth(name, held_at(history, time)), (name, time)
        assert not house.at(name, LAST)[1], f"{name} has not healed"


@pytest.mark.parametrize("seed", range(10))
def test_how_times_are_grouped_into_steps_changes_no_update(seed: int) -> None:
    """Damage: a view that was down for a while differs from its replica in which rows it calls errors."""
    history = history_of(seed)
    one, other = House(VIEWS, QUERIES), House(VIEWS, QUERIES)
    for time in range(LAST + 1):
        one.write(history, time, time + 1)
        one.tick(time + 1)
    other.write(history, 0, 1)
    other.tick(1)
    other.write(history, 1, LAST + 1)
    other.tick(LAST + 1)
    for name in VIEWS:
        assert one.updates(name) == other.updates(name), name


def test_where_it_is_not_known_what_failed_the_rows_are_tried_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a failure that says nothing stops a view for ever; or it is taken for the error of all of its rows."""
    house = House(VIEWS, QUERIES)
    evaluate = house.engine.evaluate

    async def unsure(*given: Any, **options: Any) -> Rows:
        try:
            return await evaluate(*given, **options)
        except EvaluationError as error:
            raise Unsettled("Spark failed") from error

    monkeypatch.setattr(house.engine, "evaluate", unsure)
    history = {"t": [(("a", 0), 0, 1), (("b", 3), 0, 1)], "u": []}
    house.write(history, 0, 1)
    failed = run_sync(tick(house.client, house.engine, house.runs, Frontier(1), in_turn)).failed
    assert {name: type(error) for name, error in failed.items()} == {"largest": Unsettled}
    for name in VIEWS.keys() - {"largest"}:
        rows, errors = house.at(name, 0)
        assert (rows, sum(errors.values())) == _truth(name, held_at(history, 0)), name
    house.write({"t": [(("a", 0), 1, -1)], "u": []}, 1, 2)
    house.tick(2)
    for name in VIEWS:
        assert not house.at(name, 1)[1], f"{name} has not healed"


def test_an_error_says_where_it_is_and_which_row_it_was() -> None:
    """Damage: a person reads that something failed somewhere."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 0), 0, 1)], "u": []}, 0, 1)
    house.tick(1)
    (error,) = house.at("linear", 0)[1]
    assert json.loads(error) == {"collection": "linear", "expression": "12 DIV n > 1", "row": {"k": "a", "n": 0}}
    (error,) = house.at("largest", 0)[1]
    assert json.loads(error) == {"collection": "largest", "query": QUERY}
    assert house.at("above", 0)[1] == house.at("sum", 0)[1], "a view above has the errors of the one below"


def test_a_row_that_came_and_went_is_never_evaluated_again() -> None:
    """Damage: a view fails for ever on a row that was withdrawn long ago, or before the view was made."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 0), 0, 1), (("a", 2), 0, 1)], "u": []}, 0, 1)
    house.write({"t": [(("a", 0), 1, -1)], "u": []}, 1, 2)
    house.write({"t": [(("b", 0), 2, 1), (("b", 0), 2, -1)], "u": [(("a", 0), 2, 1)]}, 2, 3)
    house.tick(3)
    house.write({"t": [], "u": [(("a", 0), 3, -1), (("a", 3), 3, 1)]}, 3, 4)
    house.tick(4)
    for name in VIEWS:
        assert not house.at(name, 3)[1], name
        assert all(error is None for _, error, _ in house.updates(name)) or name == "join"
    assert house.at("join", 3)[0] == {("a", 2, 3): 1}


def test_a_step_goes_on_after_what_it_owed_could_not_be_read() -> None:
    """Damage: every later step fails on the same rows, which only a restart forgets."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 2), 0, 1)], "u": []}, 0, 1)
    house.tick(1)
    house.write({"t": [(("a", 0), 1, 1)], "u": []}, 1, 2)
    house.engine.meanwhile = "linear", partial(house.overtake, "linear", 1, 2)
    house.tick(2)
    (run,) = (run for run in house.runs if run.name == "linear")
    assert run.sink.owes
    run.sink._correction.add(Updates(err=(Rows(None),)))  # as a part that is gone
    house.write({"t": [(("b", 4), 2, 1)], "u": []}, 2, 3)
    assert run_sync(tick(house.client, house.engine, house.runs, Frontier(3), in_turn)).failed.keys() == {"linear"}
    house.tick(3)
    rows, errors = house.at("linear", 2)
    assert (rows, sum(errors.values())) == _truth(
        "linear", {"t": Counter([("a", 2), ("a", 0), ("b", 4)]), "u": Counter()}
    )


@pytest.mark.parametrize("name", ["linear", "join", "max", "largest"])
def test_a_step_ends_though_it_owes_a_change_and_fails_on_the_next(name: str) -> None:
    """Damage: a tick never returns: what a step owed is forgotten when it fails, so it begins again, and fails."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 2), 0, 1)], "u": [(("a", 3), 0, 1)]}, 0, 1)
    house.tick(1)
    change: list[tuple[Row, int, int]] = [(("b", 4), 1, 1), (("a", 0), 2, 1)]
    house.write({"t": change, "u": change}, 1, 3)
    run_sync(house.overtake(name, 1, 2))
    house.tick(3)
    held = Counter([("b", 4), ("a", 0)])
    rows, errors = house.at(name, 2)
    assert (rows, sum(errors.values())) == _truth(
        name, {"t": held + Counter([("a", 2)]), "u": held + Counter([("a", 3)])}
    )


@pytest.mark.parametrize("name", ["largest"])
def test_a_view_that_was_half_computed_anew_owes_none_of_it(name: str) -> None:
    """Damage: a store fails while a view is compared with what it holds, and the next step appends all of it again."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 2), 0, 1)], "u": [(("a", 3), 0, 1)]}, 0, 1)
    house.tick(1)
    house.write({"t": [(("a", 0), 1, 1)], "u": [(("a", 0), 1, 1)]}, 1, 2)
    house.engine.unreadable = name
    assert run_sync(tick(house.client, house.engine, house.runs, Frontier(2), in_turn)).failed.keys() == {name}
    house.write({"t": [(("b", 4), 2, 1)], "u": []}, 2, 3)
    house.tick(3)
    held = {"t": Counter([("a", 2), ("a", 0), ("b", 4)]), "u": Counter([("a", 3), ("a", 0)])}
    rows, errors = house.at(name, 2)
    assert (rows, sum(errors.values())) == _truth(name, held)


@pytest.mark.parametrize("name", ["linear", "join", "max"])
def test_a_bad_row_that_leaves_while_its_error_is_owed_leaves_no_other_error(name: str) -> None:
    """Damage: the whole view is an error, because a step took it for one without errors and then found them."""
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 2), 0, 1)], "u": [(("a", 3), 0, 1)]}, 0, 1)
    house.tick(1)
    bad: dict[str, list[tuple[Row, int, int]]] = {
        "t": [(("a", 0), 1, 1), (("a", 0), 2, -1)],
        "u": [(("a", 0), 1, 1), (("a", 0), 2, -1)],
    }
    house.write(bad, 1, 3)
    house.engine.meanwhile = name, partial(house.overtake, name, 1, 2)
    house.tick(3)
    assert house.engine.meanwhile is None
    assert house.at(name, 2) == (_truth(name, {"t": Counter([("a", 2)]), "u": Counter([("a", 3)])})[0], Counter())


@pytest.mark.parametrize("together", [False, True], ids=["came and went", "together"])
def test_once_a_bad_row_has_left_no_step_fails_on_it(together: bool) -> None:
    """Damage: each step of a view wastes a Spark job until the history of the bad row is compacted: hours."""
    bad: dict[str, list[tuple[Row, int, int]]] = {
        "t": [(("a", 0), 1, 1), (("a", 0), 2, -1)],
        "u": [(("a", 0), 1, 1), (("a", 0), 2, -1)],
    }
    house = House(VIEWS, QUERIES)
    house.write({"t": [(("a", 2), 0, 1)], "u": [(("a", 3), 0, 1)]}, 0, 1)
    house.tick(1)
    for lower, upper in [(1, 3)] if together else [(1, 2), (2, 3)]:
        house.write(bad, lower, upper)
        house.tick(upper)
    failed = house.engine.failed
    assert failed, "the row was there"
    for time in range(3, 9):
        side = "tu"[time % 2]
        house.write({"t": [], "u": [], side: [(("a", time), time, 1)]}, time, time + 1)
        house.tick(time + 1)
    assert house.engine.failed == failed
    house.open()
    for time in range(9, 12):
        house.write({"t": [(("a", time), time, 1)], "u": [(("a", time), time, 1)]}, time, time + 1)
        house.tick(time + 1)
    assert house.engine.failed <= failed + len(VIEWS), "a process that begins anew learns it once for each view"
    held = held_at(
        {
            "t": [(("a", n), 0, 1) for n in (2, 4, 6, 8, 9, 10, 11)],
            "u": [(("a", m), 0, 1) for m in (3, 3, 5, 7, 9, 10, 11)],
        },
        0,
    )
    for name in VIEWS:
        assert house.at(name, 11) == (_truth(name, held)[0], Counter()), name
