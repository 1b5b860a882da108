"""The self-check: a wrong rule is found while the view runs, reported, and survived, without an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlglot import exp
from tests.controller.conftest import Place

from strandline.client import Environment
from strandline.compute.plan import select
from strandline.compute.plan.scalars import order
from strandline.compute.rules import accumulate
from strandline.controller.asking import selfcheck
from strandline.controller.asking.verification import MissingErrorsError, Verification

pytestmark = pytest.mark.spark

Rows = Callable[..., list[dict[str, Any]]]


def _without_parentheses(expression: exp.Expr) -> exp.Expr:
    return exp.Is(this=expression.copy(), expression=exp.Null())


def _ties_alone(window: exp.Window, names: list[str]) -> exp.Expr:
    completed = window.copy()
    ties = order.ascending(names)
    completed.set("order", exp.Order(expressions=[*(key.copy() for key in window.args["order"].expressions), *ties]))
    return completed


def plant_count(patch: pytest.MonkeyPatch) -> None:
    """The argument of a count falls apart beside IS NULL."""
    patch.setattr(accumulate, "is_null", _without_parentheses)


def plant_sessions(patch: pytest.MonkeyPatch) -> None:
    """A session is taken for a function of the row."""
    patch.setattr(select, "MERGING", ())


def plant_rollup(patch: pytest.MonkeyPatch) -> None:
    """An alias of an integer is taken for a position."""
    patch.setattr(select, "_refuse_constants", lambda *_: None)


def plant_frame(patch: pytest.MonkeyPatch) -> None:
    """The order that breaks ties shrinks the frame."""
    patch.setattr(order, "_completed", _ties_alone)


WRONG = {
    "count": (plant_count, "SELECT k, count(m OR n) AS c FROM t GROUP BY k"),
    "sessions": (
        plant_sessions,
        "SELECT w.start AS s, c FROM (SELECT session_window(at, '9 minutes') AS w, count(*) AS c FROM t GROUP BY 1)",
    ),
    "rollup": (plant_rollup, "SELECT 2 AS two, k, median(i) AS c FROM t GROUP BY ROLLUP (two, k)"),
    "frame": (plant_frame, "SELECT k, i, last_value(i) OVER (ORDER BY k) AS l FROM t"),
}
ROWS = (
    "(1, 'a', true, NULL, '2024-01-01 00:00:00'), (2, 'a', NULL, NULL, '2024-01-01 00:15:00'),"
    "(3, 'b', NULL, false, '2024-01-01 01:00:00'), (4, 'b', false, NULL, '2024-01-01 01:05:00')"
)


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Remember no rule across a planted bug: neither a right one under it, nor a wrong one after it."""
    accumulate.kept.cache_clear()
    yield
    accumulate.kept.cache_clear()


def define(env: Environment) -> None:
    """Create the table ``t`` with rows of each kind."""
    env.execute("CREATE TABLE t (i INT, k STRING, m BOOLEAN, n BOOLEAN, at TIMESTAMP)")
    env.execute(f"INSERT INTO t SELECT i, k, m, n, CAST(at AS TIMESTAMP) FROM VALUES {ROWS} AS v(i, k, m, n, at)")


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_rule_is_reported_within_three_ticks_and_the_view_is_right_then(
    place: Place, rows: Rows, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Damage: a view is wrong until a person happens to verify it."""
    plant, sql = WRONG[kind]
    plant(monkeypatch)
    with place.open() as env:
        define(env)
        env.execute(f"CREATE MATERIALIZED VIEW v AS {sql}")
        problems = []
        for minute in ("07", "30", "10"):
            env.tick()
            problems.append(env.status()["problems"].get("v", ""))
            env.execute(f"INSERT INTO t SELECT 9, 'a', true, NULL, TIMESTAMP '2024-01-01 00:{minute}:00'")
        assert any("the self-check found" in problem for problem in problems), problems
        env.tick()
        assert env.verify("v").ok
        assert not env.explain("v").incremental


def test_a_view_that_lacks_an_error_is_distrusted_as_one_that_lacks_a_row(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the check fails for ever, and the view goes on by the rule that lost the error."""

    async def lacking(*_: object) -> Verification:
        raise MissingErrorsError("'v' has no errors, and must have 1: division by zero")

    monkeypatch.setattr(selfcheck, "verify", lacking)
    with place.open() as env:
        define(env)
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n FROM t GROUP BY k")
        env.tick()
        env.tick()
        assert "found that 'v' has no errors, and must have 1" in env.status()["problems"]["v"]
        assert not env.explain("v").incremental


def test_a_view_that_was_distrusted_stays_so_until_it_is_defined_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: after a restart the wrong rule is used again."""
    plant, sql = WRONG["count"]
    with monkeypatch.context() as patch:
        plant(patch)
        with place.open() as env:
            define(env)
            env.execute(f"CREATE MATERIALIZED VIEW v AS {sql}")
            env.tick()
    accumulate.kept.cache_clear()  # another process begins here
    with place.open() as env:
        env.tick()
        assert "the self-check found" in env.status()["problems"]["v"]
        assert not env.explain("v").incremental
        env.execute("DROP MATERIALIZED VIEW v")
        env.execute(f"CREATE MATERIALIZED VIEW v AS {sql}")
        env.tick()
        assert env.status()["problems"] == {}
        assert env.explain("v").incremental


def test_a_plan_that_was_right_is_not_checked_again_at_every_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: every restart recomputes every view, to check what was checked before."""
    from strandline.controller.asking import selfcheck

    asked: list[str] = []
    verify = selfcheck.verify

    async def counted(core: Any, name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await verify(core, name, *arguments)

    monkeypatch.setattr(selfcheck, "verify", counted)
    for _ in range(2):
        with place.open() as env:
            if not asked:
                define(env)
                env.execute("CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS c FROM t GROUP BY k")
            for _ in range(4):
                env.execute("INSERT INTO t (i, k) VALUES (1, 'a')")
                env.tick()
            assert env.status()["problems"] == {}
    assert asked == ["v"] * selfcheck.FIRST_CHECKS


def test_a_sample_of_a_view_is_compared_with_the_same_sample_of_its_meaning(place: Place) -> None:
    """Damage: the background check reports differences that are none, or sees none."""
    from strandline.controller.asking.verification import Sample, verify

    with place.open() as env:
        define(env)
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT i, k FROM t")
        env.tick()
        reader = env.collection("v")
        place.tamper(env._core.catalog.collection("v").shard, reader.schema, [{"i": 77, "k": "wrong"}])
        found = [env._run(verify(env._core, "v", None, Sample(4, part))) for part in range(4)]
        assert sorted((each.missing, each.extra) for each in found) == [(0, 0), (0, 0), (0, 0), (0, 1)]
