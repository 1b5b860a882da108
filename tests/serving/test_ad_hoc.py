"""Ad-hoc queries are answered as Spark answers them, whatever a stored collection would refuse."""

from __future__ import annotations

import datetime as dt
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from pyarrow import flight
from pyspark.sql.classic.dataframe import DataFrame

from strandline.errors import DefinitionError, InvalidUsage
from strandline.serving import RemoteEnvironment, Serving
from strandline.serving.messages import made, packed

pytestmark = pytest.mark.spark

UNTYPED = """
SELECT 1 AS a, 2 AS a, NULL, NULL, count(*), count(*), map('k', 1), INTERVAL 1 DAY, INTERVAL 2 MONTH AS __m,
       parse_json('{"a": [1]}'), TIME '12:00:00.5', struct(1 AS a, 2 AS a), array(INTERVAL 1 MONTH),
       array(), map(), struct(array(map()) AS a), array(NULL)
FROM sales WHERE city = 'nowhere'
"""


def test_an_answer_has_spark_s_names_order_and_values(served: Serving, cursor: Any) -> None:
    """Damage: a tool that sends `count(*), count(*)`, or a join with equal names, is refused or gets fewer columns."""
    cursor.execute(UNTYPED)
    found = cursor.fetch_arrow_table()
    names = found.column_names
    assert names[:6] == ["a", "a", "NULL", "NULL", "count(1)", "count(1)"]
    assert names[8] == "__m"
    values = [column[0].as_py() for column in found.columns]
    assert values[:8] == [1, 2, None, None, 0, 0, [("k", 1)], dt.timedelta(days=1)]
    assert values[8:] == [
        "INTERVAL '2' MONTH",
        '{"a":[1]}',
        dt.time(12, 0, 0, 500_000),
        "{1, 2}",
        "[INTERVAL '1' MONTH]",
        "[]",
        "{}",
        "{[{}]}",
        [None],
    ]
    assert served.desk.env.query(UNTYPED).columns == names, "a DataFrame and Flight agree"
    cursor.execute("SELECT * FROM sales l JOIN sales r ON l.city = r.city LIMIT 0")
    assert cursor.fetch_arrow_table().column_names == ["city", "n", "city", "n"]


def test_our_own_client_loses_no_column_of_equal_name(remote: RemoteEnvironment) -> None:
    """Damage: a dictionary keeps the last of two columns, and the other is gone without a word."""
    found = remote.query("SELECT 1 AS a, 2 AS a")
    assert str(found) == "a  a\n1  2"
    with pytest.raises(InvalidUsage, match="two columns have one name in a, a"):
        found.collect()


def test_an_insert_counts_columns_by_position(cursor: Any, remote: RemoteEnvironment) -> None:
    """Damage: INSERT … SELECT is refused, or fills another column, because of the names that its query has."""
    cursor.execute("INSERT INTO sales SELECT 'by place' AS a, 1 AS a UNION ALL SELECT 'by place', NULL")
    cursor.execute("SELECT count(*), sum(n) FROM sales WHERE city = 'by place'")
    assert cursor.fetchall() == [(2, 1)]
    with pytest.raises(DefinitionError, match="two outputs are called 'a'"):
        remote.execute("CREATE MATERIALIZED VIEW no_such AS SELECT 1 AS a, 2 AS a FROM sales")


def test_the_columns_of_a_statement_are_known_before_it_runs(served: Serving) -> None:
    """Damage: a tool that asks for a query's columns (ExecuteSchema) gets an error."""
    asked = [
        (made("CommandStatementQuery", query="SELECT n, n FROM sales WHERE city = ?"), ["n", "n"]),
        (made("CommandStatementQuery", query="INSERT INTO sales VALUES (?, ?)"), ["committed_at"]),
    ]
    client = flight.FlightClient(served.flight_sql[0])
    for command, names in asked:
        found = client.get_schema(flight.FlightDescriptor.for_command(packed(command)))
        assert found.schema.names == names
    client.close()


PREPARED = [
    ("SELECT * FROM sales s JOIN totals t ON s.n = t.n WHERE t.city = ?", ["string"]),
    ("SELECT city FROM sales AS OF ? ORDER BY n LIMIT ?", ["int64", "int32"]),
    ("INSERT INTO sales (n, city) VALUES (?, ?)", ["int32", "string"]),
    ("INSERT INTO sales SELECT city, ? FROM totals WHERE n > ?", ["int32", "int64"]),
    ("UPDATE sales SET n = ?, city = city || ? WHERE n IN (?, ?)", ["int32", "string", "int32", "int32"]),
    ("DELETE FROM sales s WHERE EXISTS (SELECT 1 FROM totals t WHERE t.n = ? AND s.city = ?)", ["int64", "string"]),
]


@pytest.mark.parametrize(("sql", "kinds"), PREPARED, ids=range(len(PREPARED)))
def test_a_prepared_statement_says_what_its_parameters_are(served: Serving, sql: str, kinds: list[str]) -> None:
    """Damage: a driver converts a value to another type than that of what it is compared with."""
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        found = cursor.adbc_prepare(sql)
    assert [str(kind) for kind in found.types] == kinds


def test_values_of_every_type_cross_to_a_query_and_back(served: Serving) -> None:
    """Damage: a client cannot send a list, or gets back another type than it sent."""
    sent = pa.record_batch(
        {
            "1": pa.array([[1, None]]),
            "2": pa.array([{"a": 1, "b c": "x"}]),
            "3": pa.array([1_000], pa.timestamp("ns", "UTC")),
            "4": pa.array([None], pa.int16()),
        }
    )
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ?, ?, ?, ?", sent)
        found = cursor.fetch_arrow_table()
        assert [column[0].as_py() for column in found.columns][:2] == [[1, None], {"a": 1, "b c": "x"}]
        assert [str(kind) for kind in found.schema.types[2:]] == ["timestamp[us, tz=UTC]", "int16"]
        cursor.execute(
            "SELECT ?.a, e FROM sales LATERAL VIEW explode(?) AS e WHERE array(n) = ?", sent.select([1, 0, 0])
        )
        assert cursor.fetch_arrow_table().column_names[1:] == ["e"]
        cursor.execute("UPDATE sales SET n = size(?) WHERE array(n) = ?", sent.select([0, 0]))
        cursor.execute(
            "UPDATE sales SET n =-?WHERE city =?AND n IN (SELECT n FROM sales WHERE n =?)", (-1, "nobody", 5)
        )
        cursor.execute("SELECT city FROM sales ORDER BY city LIMIT ?", (0,))
        assert cursor.fetchall() == []


UPDATES = [
    ("SET n = n", (), 4),
    ("SET k = 3 - k WHERE k < 3", (), 3),
    ("SET n = 5 WHERE n = ?", (5,), 1),
    ("SET n = ?, k = k WHERE k = ?", (8, 2), 2),
    ("SET n = 1 WHERE k = 9", (), 0),
]


@pytest.mark.parametrize(("what", "values", "rows"), UPDATES, ids=range(len(UPDATES)))
def test_an_update_counts_the_rows_that_it_sets(cursor: Any, what: str, values: tuple[int, ...], rows: int) -> None:
    """Damage: a program that asks whether its row was there receives 0 if the row had the value already."""
    cursor.execute("CREATE TABLE set_rows (k INT, n INT)")
    try:
        cursor.execute("INSERT INTO set_rows VALUES (1, 5), (2, 5), (2, 6), (3, NULL)")
        cursor.execute("UPDATE set_rows SET n = 7 WHERE n = 5 AND k = 2")
        cursor.executemany(f"UPDATE set_rows {what}", [values])
        assert cursor.rowcount == rows
    finally:
        cursor.execute("DROP TABLE set_rows")


def test_no_rows_of_parameters_are_no_answers_and_no_changes(served: Serving) -> None:
    """Damage: a tool that binds an empty batch receives an internal error."""
    desk, none = served.desk, pa.RecordBatch.from_pydict({"1": pa.array([], pa.int32())})
    desk.env.execute("CREATE TABLE bound (a INT)")
    asked, _, _ = desk.prepare("SELECT ? AS a")
    desk.bind(asked, [none])
    assert desk.asked_prepared(asked)[1:] == (pa.schema([("a", pa.string())]), 0)
    inserted, _, _ = desk.prepare("INSERT INTO bound VALUES (?)")
    desk.bind(inserted, [none])
    assert desk.changed_prepared(inserted) == 0
    desk.env.execute("DROP TABLE bound")


def test_an_update_that_cannot_be_counted_has_happened(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a client hears of a failure, sends its update again, and 1 is added twice."""
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE counted (a INT)")
        cursor.execute("INSERT INTO counted VALUES (1)")
        with monkeypatch.context() as patched:
            patched.setattr(DataFrame, "count", lambda self: 1 / 0)
            cursor.adbc_statement.set_sql_query("UPDATE counted SET a = a + 1")
            assert cursor.adbc_statement.execute_update() == -1
        cursor.execute("SELECT a FROM counted")
        assert cursor.fetchall() == [(2,)]
        cursor.execute("DROP TABLE counted")
