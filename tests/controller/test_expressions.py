"""Views whose text or names could get in the way of ours: each is right at every tick, and none stops another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.algebra.schema import quote
from strandline.client import Environment
from strandline.errors import DefinitionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

#: Names that generated SQL has used for itself, and names that only quotes make possible.
NAMES = ("get_1", "get_2", "rows", "members", "frame_0", "relation_0", "l", "a`b", "select", "x.y")


def _right(env: Environment, *views: str) -> None:
    """Assert that no item has a problem and that each view is what plain Spark says."""
    assert env.status()["problems"] == {}
    for view in views:
        found = env.verify(view)
        assert found.ok, f"{view}: {found}"


def test_a_table_may_have_the_name_of_anything_that_we_generate(place: Place) -> None:
    """Else the view of one table reads another relation, or every view stands still."""
    with place.open() as env:
        for name in NAMES:
            quoted = quote(name)
            env.execute(f"CREATE TABLE {quoted} (k INT, v INT)")
        for n, name in enumerate(NAMES):
            quoted, other = (quote(each) for each in (name, NAMES[n - 1]))
            env.execute(
                f"CREATE MATERIALIZED VIEW v{n} AS SELECT a.k, count(*) AS n, max(b.v) AS m FROM {quoted} a"
                f" LEFT JOIN {other} b ON a.k = b.k GROUP BY a.k"
            )
            env.insert(name, [{"k": k, "v": k + n} for k in range(n, n + 4)])
        env.tick()
        env.insert(NAMES[0], [{"k": 2, "v": 50}])
        env.tick()
        _right(env, *(f"v{n}" for n in range(len(NAMES))))


def test_a_subquery_in_a_selection_follows_every_tick(place: Place) -> None:
    """Else the view works once, and from the second tick on it stands still with all others."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT)")
        env.execute("CREATE TABLE u (id INT)")
        env.execute(
            "CREATE MATERIALIZED VIEW e AS SELECT id, EXISTS (SELECT 1 FROM u WHERE u.id = t.id) AS there FROM t"
        )
        env.execute("CREATE MATERIALIZED VIEW anywhere AS SELECT id, EXISTS (SELECT 1 FROM u) AS there FROM t")
        env.execute("CREATE MATERIALIZED VIEW listed AS SELECT id, id IN (SELECT id FROM u) AS there FROM t")
        env.execute("CREATE MATERIALIZED VIEW most AS SELECT id, (SELECT max(id) FROM u) AS m FROM t")
        for tick in range(3):
            env.insert("t", [{"id": tick}])
            env.insert("u", [{"id": tick + 1}])
            env.tick()
            _right(env, "e", "anywhere", "listed", "most")


def test_overlapping_windows_of_time_are_counted_in_each(place: Place) -> None:
    """Else a row is counted in one of the windows that it lies in."""
    with place.open() as env:
        env.execute("CREATE TABLE t (at TIMESTAMP, n INT)")
        for name, span in (("tumbling", "'8 minutes'"), ("sliding", "'8 minutes', '4 minutes'")):
            env.execute(
                f"CREATE MATERIALIZED VIEW {name} AS SELECT window(at, {span}).start AS w, count(*) AS c, max(n) AS m"
                f" FROM t GROUP BY window(at, {span})"
            )
        for tick in range(3):
            env.execute(f"INSERT INTO t VALUES (TIMESTAMP '2026-01-01 10:0{tick}:00', {tick}), (NULL, 7)")
            env.tick()
            _right(env, "tumbling", "sliding")


@pytest.mark.parametrize("statement", ["CREATE TABLE t ()", "CREATE TABLE t"])
def test_a_table_without_columns_is_refused_when_it_is_made(place: Place, statement: str) -> None:
    """Else every later tick fails on it."""
    with place.open() as env, pytest.raises(DefinitionError):
        env.execute(statement)
