"""The first rows for each row, in an order whose keys are no outputs: a view, a query and `verify` give one answer."""

from __future__ import annotations

from typing import Final

import pytest
from tests.controller.conftest import Place

from strandline.client import Environment

pytestmark = pytest.mark.spark

FORMS: Final = {
    "lateral": ("SELECT t.id, t.k, l.a FROM t, LATERAL (SELECT a FROM u WHERE u.k = t.k ORDER BY u.id LIMIT 1) l", 5),
    "scalar": ("SELECT t.id, t.k, (SELECT a FROM u WHERE u.k = t.k ORDER BY u.id LIMIT 1) AS a FROM t", 5),
    "computed": ("SELECT t.id, (SELECT -a FROM u WHERE u.k = t.k ORDER BY a DESC LIMIT 1) AS a FROM t", -5),
    "alias": ("SELECT t.id, (SELECT id AS a FROM u WHERE u.k = t.k ORDER BY a + 0, u.a DESC LIMIT 1) AS a FROM t", 4),
    "groups": (
        "SELECT t.id, l.a FROM t, LATERAL (SELECT max(a) AS a FROM u WHERE k = t.k GROUP BY id ORDER BY -id LIMIT 1) l",
        1,
    ),
    "inside": (
        "SELECT t.id, (SELECT max(a) FROM (SELECT a FROM u WHERE u.k = t.k ORDER BY u.id DESC, a LIMIT 2)) AS a FROM t",
        1,
    ),
}
"""Queries by what they show, and what the row 1 of `t` has."""

STAR: Final = (
    "SELECT t.id, l.a FROM t, LATERAL (SELECT w.* FROM (SELECT a, id AS x FROM u WHERE k = t.k) w, (SELECT 1 AS y) "
    "ORDER BY x * y LIMIT 1) l"
)


def _filled(env: Environment) -> None:
    env.execute("CREATE TABLE t (id INT, k INT)")
    env.execute("CREATE TABLE u (id INT, k INT, a INT)")
    env.execute("INSERT INTO t VALUES (1, 2), (7, 8)")


def test_a_limit_in_a_correlated_subquery_keeps_the_first_rows_of_the_order(place: Place) -> None:
    """Damage: Spark numbers the rows in no order, and the view, the query and `verify` each give some row."""
    with place.open() as env:
        _filled(env)
        for name, (sql, _) in FORMS.items():
            env.execute(f"CREATE MATERIALIZED VIEW v_{name} AS {sql}")
        env.tick()
        env.execute("INSERT INTO u VALUES (5, 2, NULL), (5, 2, 1), (4, 2, 5)")
        env.tick()
        for name, (sql, first) in FORMS.items():
            kept = {row.id: row.a for row in env.query(f"SELECT * FROM v_{name}").collect()}
            asked = {row.id: row.a for row in env.query(sql).collect()}
            assert kept == asked, name
            assert (kept[1], kept.get(7)) == (first, None), name
            assert env.verify(f"v_{name}").ok, name
        assert env.query(STAR).collect()[0].a == 5  # a view would have to say which columns break ties
        kinds = {name: str(env.explain(f"v_{name}")) for name in ("lateral", "scalar")}
        assert all("keyed" in text for text in kinds.values()), kinds
