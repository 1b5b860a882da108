"""The public face: what `strandline.open` gives does what it promises."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from strandline.client import Environment
from strandline.errors import AsOfError, CollectionError, ConfigError, DefinitionError, InvalidUsage

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
Rows = Callable[..., list[dict[str, Any]]]

SALES = """
    CREATE MATERIALIZED VIEW sales AS
    SELECT c.city, count(*) AS n, sum(o.amount) AS amount, min(o.amount) AS least
    FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.city
"""


def _shop(env: Environment) -> None:
    env.execute("CREATE TABLE customers (id INT, city STRING)")
    env.execute("CREATE TABLE orders (id INT, customer INT, amount DECIMAL(10,2))")
    env.execute(SALES)
    env.insert("customers", [{"id": 1, "city": "Delft"}, {"id": 2, "city": "Ghent"}])
    env.tick()  # the view's history begins here


def test_a_view_follows_inserts_updates_and_deletes_at_every_time(place: Place, rows: Rows) -> None:
    """Else a reader would see totals that no state of the tables ever had."""
    with place.open() as env:
        _shop(env)
        env.insert("orders", [{"id": 7, "customer": 1, "amount": 20}, {"id": 8, "customer": 2, "amount": 5}])
        first = env.tick()
        moved = env.execute("UPDATE customers SET city = 'Leiden' WHERE id = 1")
        gone = env.execute("DELETE FROM orders WHERE id = 8")
        env.tick()
        five, twenty = Decimal("5.00"), Decimal("20.00")
        delft = {"city": "Delft", "n": 1, "amount": twenty, "least": twenty}
        ghent = {"city": "Ghent", "n": 1, "amount": five, "least": five}
        leiden = delft | {"city": "Leiden"}

        assert rows(env, "SELECT * FROM sales", as_of=first) == [delft, ghent]
        assert moved is not None
        assert rows(env, "SELECT * FROM sales", as_of=moved) == [ghent, leiden]
        assert rows(env, "SELECT * FROM sales", as_of=gone) == [leiden]
        assert env.verify("sales").ok
        assert env.verify("sales", as_of=moved).ok


def test_a_statement_sees_a_view_at_the_moment_at_which_it_sees_the_table(place: Place, rows: Rows) -> None:
    """Else it reads the table as it was when the view was last stepped: rows are missed, or withdrawn twice."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT, n INT)")
        env.execute("CREATE TABLE odd (id INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE id % 2 = 1")
        env.insert("t", [{"id": 1, "n": 0}])
        env.tick()
        env.insert("t", [{"id": 8, "n": 0}, {"id": 9, "n": 0}])  # and no tick: the view does not know of it
        env.execute("DELETE FROM t WHERE id NOT IN (SELECT id FROM v)")
        env.execute("UPDATE t SET n = n + 1 WHERE id IN (SELECT id FROM v)")
        env.execute("UPDATE t SET n = n + 1 WHERE id IN (SELECT id FROM v)")
        env.execute("INSERT INTO odd SELECT id FROM v")
        assert rows(env, "SELECT * FROM t") == [{"id": 1, "n": 2}, {"id": 9, "n": 2}]
        assert rows(env, "SELECT * FROM odd") == [{"id": 1}, {"id": 9}]


def test_a_statement_over_a_view_that_has_errors_is_refused_and_changes_nothing(place: Place, rows: Rows) -> None:
    """Else it would write what follows from the rows that happen to have an answer."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT id, 10 / id AS r FROM t")
        env.insert("t", [{"id": 1}])
        env.tick()
        env.insert("t", [{"id": 0}])
        with pytest.raises(CollectionError, match=r"'v' has 1 error .*10 / `id` has no value"):
            env.execute("DELETE FROM t WHERE id IN (SELECT id FROM v)")
        assert rows(env, "SELECT * FROM t") == [{"id": 0}, {"id": 1}]


def test_a_transaction_over_two_tables_is_whole_or_not_at_all(place: Place, rows: Rows) -> None:
    """Else a join would see an order without its customer."""
    with place.open() as env:
        _shop(env)
        with env.transaction() as txn:
            txn.insert("customers", [{"id": 3, "city": "Bern"}])
            txn.insert("orders", [{"id": 9, "customer": 3, "amount": 1}])
        assert txn.timestamp is not None
        with pytest.raises(InvalidUsage, match="not there"), env.transaction() as failed:
            failed.insert("customers", [{"id": 4, "city": "Rome"}])
            failed.delete("orders", [{"id": 1, "customer": 1, "amount": 1}])
        env.tick()

        assert failed.timestamp is None
        assert [r["city"] for r in rows(env, "SELECT city FROM sales", as_of=txn.timestamp)] == ["Bern"]
        assert rows(env, "SELECT count(*) AS n FROM customers") == [{"n": 3}]


def test_the_same_token_twice_is_one_commit(place: Place, rows: Rows) -> None:
    """Else a retry after a lost answer would insert twice."""
    with place.open() as env:
        _shop(env)
        order = [{"id": 1, "customer": 1, "amount": 3}]
        first = env.insert("orders", order, token="a")
        assert env.insert("orders", order, token="a") == first
    with place.open() as env:
        assert env.insert("orders", order, token="a") == first
        env.tick()

        assert rows(env, "SELECT count(*) AS n FROM orders") == [{"n": 1}]


def test_an_environment_opened_again_goes_on_where_it_was_without_recomputing(place: Place, rows: Rows) -> None:
    """Else every restart would cost a full recomputation."""
    with place.open() as env:
        _shop(env)
        env.insert("orders", [{"id": 7, "customer": 1, "amount": 20}])
        before = env.tick()
    with place.open() as env:
        after = env.tick()
        report = env._core.require_writing().instance._views.report

        assert after > before
        assert not report.stepped, "nothing changed, so nothing may be computed"
        assert [r["city"] for r in rows(env, "SELECT city FROM sales", as_of=after)] == ["Delft"]


def test_times_outside_what_is_known_are_refused_and_say_what_is(place: Place) -> None:
    """Else a query would silently answer for another time."""
    with place.open() as env:
        _shop(env)
        now = env.tick()

        with pytest.raises(AsOfError, match="upper"):
            env.query("SELECT * FROM sales", as_of=now + 10_000)
        with pytest.raises(AsOfError, match="since"):
            env.query("SELECT * FROM sales", as_of=0)


def test_bad_definitions_name_the_place_and_the_candidates_and_change_nothing(place: Place) -> None:
    """Else an author would be left to guess, with half a view in the catalog."""
    with place.open() as env:
        _shop(env)
        before = env.status()["collections"].keys()

        with pytest.raises(DefinitionError, match=r"line 2, column"):
            env.execute("CREATE MATERIALIZED VIEW v AS\nSELECT id FORM orders WHERE")
        with pytest.raises(DefinitionError, match=r"(?i)amuont.*amount"):
            env.execute("CREATE MATERIALIZED VIEW v AS SELECT amuont FROM orders")
        with pytest.raises(DefinitionError, match="rand"):
            env.execute("CREATE MATERIALIZED VIEW v AS SELECT id, rand() AS r FROM orders")
        with pytest.raises(DefinitionError, match="did you mean 'orders'"):
            env.query("SELECT * FROM order_s")
        with pytest.raises(DefinitionError, match="is read by sales"):
            env.execute("DROP TABLE orders")
        assert env.status()["collections"].keys() == before


def test_a_second_environment_is_refused_and_a_reader_is_not(place: Place, rows: Rows) -> None:
    """Damage: two writers fight, or no reader can look while one runs."""
    with place.open() as env:
        _shop(env)
        env.tick()

        with pytest.raises(ConfigError, match="process"):
            place.open()
        with place.open(read_only=True) as reader:
            assert rows(reader, "SELECT count(*) AS n FROM customers") == [{"n": 2}]
            with pytest.raises(InvalidUsage, match="read-only"):
                reader.insert("customers", [{"id": 5, "city": "Oslo"}])


def test_a_row_that_has_no_answer_is_an_error_of_its_view_and_heals_when_it_leaves(place: Place, rows: Rows) -> None:
    """Else one bad row would stop every pipeline, or be dropped."""
    with place.open() as env:
        _shop(env)
        env.execute("CREATE MATERIALIZED VIEW ratio AS SELECT id, 10 / customer AS r FROM orders")
        env.insert("orders", [{"id": 1, "customer": 0, "amount": 1}, {"id": 2, "customer": 1, "amount": 1}])
        env.tick()

        found = env.status()["collections"]["ratio"]
        assert found["errors"]["first"][0]["row"] == {"id": 1, "customer": 0}
        assert found["problem"] is None
        assert [r["city"] for r in rows(env, "SELECT city FROM sales")] == ["Delft"]
        with pytest.raises(CollectionError, match=r"'ratio' has 1 error .*10 / `customer` has no value.*'customer': 0"):
            env.query("SELECT * FROM ratio")
        env.execute("DELETE FROM orders WHERE id = 1")
        env.tick()
        assert rows(env, "SELECT id FROM ratio") == [{"id": 2}]
        assert env.verify("ratio").ok


def test_a_callers_session_keeps_its_conf(place: Place, spark: SparkSession) -> None:
    """Else a notebook's own queries would change under its author."""
    before = {key: spark.conf.get(key) for key in ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled")}
    with place.open() as env:
        _shop(env)
        env.tick()

    assert {key: spark.conf.get(key) for key in before} == before
    views = [row.viewName for row in spark.sql("SHOW VIEWS").collect()]
    assert [name for name in views if name.startswith("__")] == [], "no temporary view of ours is left behind"


def test_definitions_depend_on_views_and_drop_in_order(place: Place, rows: Rows) -> None:
    """Else a view over a view would lag, or a dropped one would leave its readers blind."""
    with place.open() as env:
        _shop(env)
        env.execute("CREATE MATERIALIZED VIEW best AS SELECT city, n FROM sales ORDER BY n DESC, city LIMIT 1")
        env.insert("orders", [{"id": n, "customer": 1 + n % 2, "amount": n} for n in range(1, 6)])
        env.tick()

        assert rows(env, "SELECT * FROM best") == [{"city": "Ghent", "n": 3}]
        assert env.explain("best").incremental
        env.execute("CREATE MATERIALIZED VIEW ranked AS SELECT city, rank() OVER (ORDER BY n) AS r FROM sales")
        assert not env.explain("ranked").incremental
        env.execute("DROP MATERIALIZED VIEW ranked")
        assert env.explain("sales").incremental
        assert env.status()["collections"]["sales"]["sort"] == ["city"]
        assert [
            env.inspect("sales")["sort"],
            *{each["sort"] for each in env.inspect("sales")["batches"] if each["rows"]},
        ] == [("city",), ("city",)]
        env.execute("DROP MATERIALIZED VIEW best")
        env.execute("DROP MATERIALIZED VIEW sales")
        env.execute(SALES)
        env.tick()
        assert env.verify("sales").ok


def test_what_is_dropped_is_closed_and_released_but_for_what_others_use(place: Place, rows: Rows) -> None:
    """Else every collection that was ever dropped would be kept, and paid for; or a view would lose its stage."""
    with place.open() as env:
        _shop(env)
        env.execute(SALES.replace("sales", "sales_again"))
        env.execute("CREATE TABLE passing (id INT)")
        env.insert("passing", [{"id": 1}])
        env.insert("orders", [{"id": n, "customer": 1 + n % 2, "amount": n} for n in range(1, 6)])
        env.tick()
        gone = [env.inspect(name)["shard"] for name in ("sales_again", "passing")]
        env.execute("DROP MATERIALIZED VIEW sales_again")
        env.execute("DROP TABLE passing")
        for shard in gone:
            found = env.inspect(shard)
            assert (found["since"], found["upper"], found["batches"][0]["rows"]) == (None, None, 0)
        env.insert("orders", [{"id": 6, "customer": 1, "amount": 6}])
        env.tick()
        assert env.verify("sales").ok
    with place.open() as env:
        assert env.verify("sales").ok
        assert env.fsck()["found"] == []
