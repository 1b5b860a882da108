"""What the public calls are given by mistake is refused in a sentence, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.client import Environment
from strandline.controller.language import arguments
from strandline.errors import AsOfError, DefinitionError, InvalidUsage, StrandlineError

pytestmark = pytest.mark.spark
FAR = 1 << 62


@pytest.fixture(scope="module")
def env(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with a table of one row and a view."""
    with strandline.open(f"file://{tmp_path_factory.mktemp('arguments')}/location", spark=spark) as opened:
        opened.execute("CREATE TABLE t (id INT)")
        opened.execute("CREATE TABLE w (id INT, s STRING, d DATE)")
        opened.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        opened.insert("t", [{"id": 0}])
        opened.tick()
        yield opened


WRONG: list[tuple[str, Callable[[Environment], Any], type[StrandlineError], str]] = [
    ("a negative lower", lambda e: e.collection("t").changes(-5, 3), InvalidUsage, "lower must be a time"),
    ("a negative upper", lambda e: e.collection("t").changes(0, -1), InvalidUsage, "upper must be a time"),
    ("a window upside down", lambda e: e.collection("t").changes(9, 3), InvalidUsage, r"lower \(9\) is after upper"),
    ("a window of text", lambda e: e.collection("t").changes("0", "9"), InvalidUsage, "lower must be an int.*'0'"),
    ("a window of None", lambda e: e.collection("t").changes(None, 9), InvalidUsage, "lower must be an int.*None"),
    ("a window beyond upper", lambda e: e.collection("t").changes(0, FAR), AsOfError, "upper"),
    ("a huge window", lambda e: e.collection("t").changes(0, 1 << 70), InvalidUsage, "upper must be a time"),
    ("a negative time", lambda e: e.collection("t").snapshot(-1), InvalidUsage, "as_of must be a time"),
    ("a float as a time", lambda e: e.collection("t").snapshot(1.5), InvalidUsage, "as_of must be an int.*float: 1.5"),
    ("a bool as a time", lambda e: e.collection("t").snapshot(True), InvalidUsage, "as_of must be an int.*bool: True"),
    ("a time beyond upper", lambda e: e.collection("t").snapshot(FAR), AsOfError, "upper"),
    ("a collection of None", lambda e: e.collection(None), InvalidUsage, "name must be a str, and this is None"),
    ("a collection without a name", lambda e: e.collection(" "), InvalidUsage, "name is empty"),
    ("an unknown collection", lambda e: e.collection("tt"), DefinitionError, "did you mean 't'"),
    ("a query of None", lambda e: e.query(None), InvalidUsage, "must be a str, and this is None"),
    ("an empty query", lambda e: e.query(""), InvalidUsage, "is empty"),
    ("a query of bytes", lambda e: e.query(b"SELECT 1"), InvalidUsage, "must be a str, and this is a bytes"),
    ("a query that changes", lambda e: e.query("DELETE FROM t"), InvalidUsage, "Delete is no query"),
    ("a query at a text", lambda e: e.query("SELECT 1", as_of="now"), InvalidUsage, "as_of must be an int"),
    ("two queries", lambda e: e.query("SELECT 1; SELECT 2"), DefinitionError, "another begins here.*column 11"),
    ("a query of another kind", lambda e: e.query("SUBSCRIBE t"), InvalidUsage, "Subscribe is no query"),
    ("half a character", lambda e: e.execute("INSERT INTO t VALUES ('\ud800')"), DefinitionError, r"'\\ud800' is no"),
    ("a query with an open quote", lambda e: e.query("SELECT 'a"), DefinitionError, "cannot be read"),
    ("a statement of None", lambda e: e.execute(None), InvalidUsage, "must be a str, and this is None"),
    ("a statement that asks", lambda e: e.execute("SELECT 1"), InvalidUsage, "env.query"),
    ("a bracket", lambda e: e.execute("BEGIN"), InvalidUsage, "env.transaction"),
    ("rows of None", lambda e: e.insert("t", None), InvalidUsage, "rows must be a Spark or pandas.*this is None"),
    ("rows of a text", lambda e: e.insert("t", "id"), InvalidUsage, "rows must be .*this is a str"),
    ("a row alone", lambda e: e.insert("t", {"id": 1}), InvalidUsage, "rows must be .*this is a dict"),
    ("a number", lambda e: e.insert("t", 3), InvalidUsage, "rows must be .*this is an int: 3"),
    ("rows that are tuples", lambda e: e.insert("t", [(1, "a")]), InvalidUsage, "row 1 must be a dict .*a tuple"),
    ("rows with numbers for names", lambda e: e.insert("t", [{1: 2}]), InvalidUsage, "row 1 must be a dict"),
    ("a row of None", lambda e: e.insert("t", [{"id": 1}, None]), InvalidUsage, "row 2 must be .*this is None"),
    ("a column of two types", lambda e: e.insert("t", [{"id": 1}, {"id": "x"}]), InvalidUsage, "column 'id'"),
    ("a number too large", lambda e: e.insert("t", [{"id": 1 << 80}]), InvalidUsage, "column 'id'"),
    ("a number that does not fit", lambda e: e.insert("t", [{"id": 1 << 40}]), InvalidUsage, "column 'id' cannot"),
    ("an object", lambda e: e.insert("t", [{"id": object()}]), InvalidUsage, "column 'id' cannot be read"),
    ("an unknown column", lambda e: e.insert("t", [{"idd": 1}]), InvalidUsage, "unknown: idd"),
    ("pandas objects", lambda e: e.insert("t", pd.DataFrame({"id": [1, "x"]})), InvalidUsage, "cannot be read"),
    ("a pandas series", lambda e: e.insert("t", pd.Series([1], name="id")), InvalidUsage, "rows must be|row 1 must"),
    ("an Arrow array", lambda e: e.insert("t", pa.array([1])), InvalidUsage, "rows must be|row 1 must"),
    ("a table of None", lambda e: e.insert(None, []), InvalidUsage, "the table's name must be a str"),
    ("a view as a table", lambda e: e.insert("v", [{"id": 1}]), InvalidUsage, "'v' is a view; only tables"),
    ("a number as a token", lambda e: e.insert("t", [{"id": 1}], token=7), InvalidUsage, "token must be a str.*int: 7"),
    ("an empty token", lambda e: e.insert("t", [{"id": 1}], token=""), InvalidUsage, "token is empty"),
    ("a delete of None", lambda e: e.delete("t", None), InvalidUsage, "rows must be"),
    ("a transaction's token", lambda e: e.begin(token=b"x"), InvalidUsage, "token must be a str"),
    ("a transaction's row", lambda e: e.begin().insert("t", [1]), InvalidUsage, "row 1 must be a dict"),
    ("a transaction's query", lambda e: e.begin().execute("SELECT 1"), InvalidUsage, "cannot be part of"),
    ("a transaction's None", lambda e: e.begin().execute(None), InvalidUsage, "must be a str"),
    ("a tick at a text", lambda e: e.tick("now"), InvalidUsage, "ts must be an int"),
    ("a tick before zero", lambda e: e.tick(-1), InvalidUsage, "ts must be a time"),
    ("a tick in the past", lambda e: e.tick(1), InvalidUsage, "next free one"),
    ("a sync to None", lambda e: e.sync(None), InvalidUsage, "ts must be an int"),
    ("a sync for a text", lambda e: e.sync(1, timeout="1 s"), InvalidUsage, "timeout must be a number"),
    ("a sync for less than nothing", lambda e: e.sync(1, timeout=-1), InvalidUsage, "timeout must be 0 or more"),
    ("to explain None", lambda e: e.explain(None), InvalidUsage, "name must be a str"),
    ("to explain a table", lambda e: e.explain("t"), DefinitionError, "no materialized view 't'"),
    ("to verify None", lambda e: e.verify(None), InvalidUsage, "name must be a str"),
    ("to verify a table", lambda e: e.verify("t"), InvalidUsage, "only views"),
    ("to verify what is not there", lambda e: e.verify("vv"), DefinitionError, "did you mean 'v'"),
    ("to verify at a text", lambda e: e.verify("v", as_of="0"), InvalidUsage, "as_of must be an int"),
    ("to verify before zero", lambda e: e.verify("v", as_of=-1), InvalidUsage, "as_of must be a time"),
    ("to verify beyond upper", lambda e: e.verify("v", as_of=FAR), AsOfError, "upper"),
    ("to inspect None", lambda e: e.inspect(None), InvalidUsage, "name must be a str"),
    ("to compact a number", lambda e: e.compact(3), InvalidUsage, "name must be a str"),
    ("to withdraw a file alone", lambda e: e.withdraw("s", "a.csv"), InvalidUsage, "files must be a list of names"),
    ("to skip a number", lambda e: e.skip("s", file=[3]), InvalidUsage, "a name of file must be a str"),
    ("to apply a path", lambda e: e.apply("project"), InvalidUsage, "project must be a Project"),
]


@pytest.mark.parametrize(("call", "error", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_a_wrong_call_is_refused_in_a_sentence_and_changes_nothing(
    env: Environment, call: Callable[[Environment], Any], error: type[StrandlineError], said: str
) -> None:
    """Else a person reads the traceback of a library that they did not call."""
    before = env.collection("t").upper
    with pytest.raises(error, match=said) as refused:
        call(env)

    assert "\n" not in str(refused.value)
    assert env.collection("t").upper == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"location": None}, "location must be a str"),
        ({"location": ""}, "location is empty"),
        ({"consensus": 3}, "consensus must be a str"),
        ({"config": "x"}, "config must be a mapping"),
        ({"config": {1: 2}}, "configuration"),
        ({"mode": "write"}, "no mode 'write'"),
        ({"mode": 1}, "no mode 1"),
        ({"spark": "local"}, "spark must be a SparkSession"),
    ],
)
def test_a_location_is_not_opened_by_wrong_arguments(spark: SparkSession, options: dict[str, Any], said: str) -> None:
    """Else the first call of a new user ends in a traceback."""
    with pytest.raises(StrandlineError, match=said):
        strandline.open(**{"location": "memory://", "spark": spark, **options})


def test_a_transaction_that_is_committed_takes_no_more_and_commits_once(env: Environment) -> None:
    """Else a second commit inserts every row again."""
    transaction = env.begin()
    transaction.execute("DELETE FROM t WHERE false")
    transaction.commit()
    for again in (transaction.commit, lambda: transaction.insert("t", [{"id": 1}])):
        with pytest.raises(InvalidUsage, match="is committed; begin another"):
            again()


def test_what_is_closed_refuses_every_call(spark: SparkSession) -> None:
    """Else a closed environment hangs, or fails inside of its event loop."""
    env = strandline.open("memory://", spark=spark)
    env.execute("CREATE TABLE t (id INT)")
    collection, transaction = env.collection("t"), env.begin()
    env.close()
    env.close()
    calls: list[Callable[[], Any]] = [
        lambda: env.insert("t", [{"id": 1}]),
        lambda: env.query("SELECT 1"),
        lambda: env.execute("DELETE FROM t"),
        lambda: transaction.insert("t", [{"id": 1}]),
        collection.snapshot,
        lambda: collection.changes(0, 1),
        lambda: env.sync(1),
        lambda: env.verify("t"),
        env.tick,
        env.status,
    ]
    for call in calls:
        with pytest.raises(InvalidUsage, match="this environment is closed"):
            call()


def test_rows_are_taken_from_what_people_have_them_in(env: Environment, spark: SparkSession) -> None:
    """Else a person with a pandas frame has to know how ours are made."""
    frame = pd.DataFrame({"id": [1.0, None], "s": ["a", None], "d": pd.to_datetime(["2020-01-01", None]).date})
    given = {
        "pandas": frame[frame["s"] == "a"],
        "Arrow": pa.table({"ID": [1], "s": ["a"], "d": [date(2020, 1, 1)]}).cast(
            pa.schema({"ID": pa.int64(), "s": pa.large_string(), "d": pa.date64()})
        ),
        "a record batch": pa.RecordBatch.from_pydict({"id": [Decimal(1)], "s": ["a"], "d": [None]}),
        "Spark": spark.sql("SELECT 1 AS id, 'a' AS s, DATE'2020-01-01' AS d"),
        "a generator": ({"id": n, "s": "a", "d": None} for n in [1]),
    }
    for name, rows in given.items():
        env.insert("w", rows)
        found = [row.asDict() for row in env.query("SELECT id, s FROM w").collect()]
        assert found == [{"id": 1, "s": "a"}], name
        env.execute("DELETE FROM w")


def test_the_rows_of_pandas_keep_their_missing_values_as_null() -> None:
    """Else a missing number is stored as NaN, which is greater than all others."""
    frame = pd.DataFrame({"x": [1.5, None], "t": pd.to_datetime(["2020-01-01", None])}, index=["a", "b"])

    found = arguments.arrow(frame, "t", ["x", "t"])

    assert found.column_names == ["x", "t"]
    assert found["x"].to_pylist() == [1.5, None]
    assert found["t"].null_count == 1
