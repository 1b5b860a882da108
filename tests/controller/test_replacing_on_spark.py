"""A view is replaced while tables change, with an endpoint and an index over it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from strandline.client import Environment
from strandline.errors import AsOfError, DefinitionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = [pytest.mark.spark]
Rows = Callable[..., list[dict[str, Any]]]

SALES: Final = "SELECT city, count(*) AS n FROM orders GROUP BY city"


def stored(path: Path) -> list[tuple[Any, ...]]:
    """What the endpoint's table holds."""
    with sqlite3.connect(path) as connection:
        return sorted(connection.execute("SELECT * FROM sales"))


def begin(env: Environment, path: Path) -> int:
    """Make a table, a view of it, and what reads the view; return the time at which they are complete."""
    env.execute("CREATE TABLE orders (id INT, city STRING, amount INT)")
    env.execute(f"CREATE MATERIALIZED VIEW sales AS {SALES}")
    env.execute("CREATE MATERIALIZED VIEW large AS SELECT city FROM sales WHERE n > 1")
    env.execute(f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{path}') AS sales KEY (city)")
    env.insert("orders", [{"id": n, "city": ("Delft", "Ghent")[n % 2], "amount": n} for n in range(5)])
    return env.tick()


def test_the_endpoint_and_what_reads_a_replaced_view_follow(place: Place, rows: Rows, tmp_path: Path) -> None:
    """Damage: an endpoint keeps the rows of a query that is gone, or has those of both."""
    path = tmp_path / "out.db"
    with place.open() as env:
        before = begin(env, path)
        assert stored(path) == [("Delft", 3), ("Ghent", 2)]
        env.execute(f"CREATE OR REPLACE MATERIALIZED VIEW sales AS {SALES.replace('count(*)', '10 * count(*)')}")
        env.tick()
        assert rows(env, "SELECT * FROM sales") == [{"city": "Delft", "n": 30}, {"city": "Ghent", "n": 20}]
        assert rows(env, "SELECT * FROM sales", as_of=before) == [{"city": "Delft", "n": 3}, {"city": "Ghent", "n": 2}]
        with pytest.raises(AsOfError, match="was of another query"):
            env.verify("sales", as_of=before)
        first = env.collection("sales").upper
        assert first is not None
        assert env.verify("sales", as_of=first - 1).ok
        env.execute("DELETE FROM orders WHERE id = 0")
        env.tick()
        assert stored(path) == [("Delft", 20), ("Ghent", 20)]
        assert env.verify("sales").ok
        assert env.verify("out").ok

        more = SALES.replace("count(*) AS n", "count(*) AS n, max(amount) AS most")
        before = env.tick()
        env.execute(f"CREATE OR REPLACE MATERIALIZED VIEW sales AS {more}")
        env.tick()
        with pytest.raises(AsOfError, match="is another query, which has no rows of earlier times"):
            env.query("SELECT * FROM sales", as_of=before).collect()
        sales = env.collection("sales")
        assert sales.since is not None
        assert sales.upper is not None
        assert sales.since > before
        first = rows(env, "SELECT * FROM sales", as_of=sales.since)
        whole = sales.changes(sales.since, sales.since + 1).select("city", "n", "most", "__time", "__diff")
        assert sorted(whole.collect()) == [(r["city"], r["n"], r["most"], sales.since, 1) for r in first]
        assert env.status()["collections"]["sales"]["since"] == sales.since
        env.insert("orders", [{"id": 9, "city": "Delft", "amount": 9}])
        env.tick()
        env.tick()
        assert stored(path) == [("Delft", 3, 9), ("Ghent", 2, 3)]
        assert env.verify("out").ok
        assert rows(env, "SELECT * FROM large") == [{"city": "Delft"}, {"city": "Ghent"}]
    with place.open() as env:
        env.tick()
        assert all(env.verify(name).ok for name in ("sales", "large", "out"))
        assert env.status()["problems"] == {}


def test_a_replacement_that_what_reads_the_view_could_not_bear_is_refused(place: Place, tmp_path: Path) -> None:
    """Damage: a new column name takes the endpoint down, and the old one is gone."""
    with place.open() as env:
        begin(env, tmp_path / "out.db")
        for query, said in (
            ("SELECT city AS town, 2 AS n FROM orders", "'large' reads 'sales' and could not go on"),
            ("SELECT city, id, count(*) AS n FROM orders GROUP BY city, id", r"finds rows of 'sales' by \(city\)"),
        ):
            with pytest.raises(DefinitionError, match=said):
                env.execute(f"CREATE OR REPLACE MATERIALIZED VIEW sales AS {query}")
        env.execute("DROP MATERIALIZED VIEW large")
        with pytest.raises(DefinitionError, match="finds rows of 'sales' by column 'city'"):
            env.execute("CREATE OR REPLACE MATERIALIZED VIEW sales AS SELECT city AS town, 2 AS n FROM orders")
        env.tick()
        assert env.verify("out").ok


def test_a_query_that_fails_for_rows_does_not_take_the_place_of_one_that_does_not(place: Place, rows: Rows) -> None:
    """Damage: a mistake in a new query makes a view unreadable that was read until then."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT id, id AS r FROM t")
        env.insert("t", [{"id": 0}, {"id": 2}])
        env.tick()
        env.execute("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, CAST(10 / id AS INT) AS r FROM t")
        env.tick()
        env.tick()
        assert rows(env, "SELECT * FROM v") == [{"id": 0, "r": 0}, {"id": 2, "r": 2}]
        assert "the new query fails for 1 row(s)" in env.status()["problems"]["__next_v"]
        env.execute("DELETE FROM t WHERE id = 0")
        env.tick()
        env.tick()
        assert rows(env, "SELECT * FROM v") == [{"id": 2, "r": 5}]
        assert env.status()["problems"] == {}
        assert env.verify("v").ok


def test_a_table_gets_a_column_with_an_endpoint_and_views_over_it(place: Place, rows: Rows, tmp_path: Path) -> None:
    """Damage: one new column takes a table, its views and its endpoint away."""
    path = tmp_path / "out.db"
    with place.open() as env:
        env.execute("CREATE TABLE orders (id INT, city STRING)")
        env.execute("CREATE MATERIALIZED VIEW every AS SELECT * FROM orders")
        env.execute(f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{path}') AS orders TO sales KEY (id)")
        env.insert("orders", [{"id": 1, "city": "Delft"}, {"id": 2, "city": "Ghent"}])
        env.tick()
        with pytest.raises(DefinitionError, match="(?i)notype"):
            env.execute("ALTER TABLE orders ADD COLUMN x NOTYPE")
        env.execute("ALTER TABLE orders ADD COLUMN amount DECIMAL(10,2)")
        env.execute("INSERT INTO orders VALUES (3, 'Delft', 5)")
        env.execute("UPDATE orders SET amount = 7 WHERE id = 1")
        env.execute("DELETE FROM orders WHERE id = 2")
        env.tick()
        assert stored(path) == [(1, "Delft", "7.00"), (3, "Delft", "5.00")]
        assert rows(env, "SELECT * FROM every") == [{"id": 1, "city": "Delft"}, {"id": 3, "city": "Delft"}]
        assert all(env.verify(name).ok for name in ("every", "out"))
    with place.open() as env:
        env.tick()
        assert all(env.verify(name).ok for name in ("every", "out"))
        assert env.status()["problems"] == {}
        env.execute("CREATE OR REPLACE MATERIALIZED VIEW every AS SELECT * FROM orders")
        env.tick()
        env.tick()
        assert [row["amount"] for row in rows(env, "SELECT * FROM every")] == [7, 5]
