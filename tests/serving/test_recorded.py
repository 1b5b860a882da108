"""What database tools send when a person connects, browses and draws: each call is answered, or refused in a sentence.

Recorded by shape: the questions of the JDBC and ADBC drivers of Flight SQL when DBeaver opens a connection and a table,
and the texts of DBeaver, of SQLAlchemy and of Superset, with tables of ours in the place of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import flight

from strandline.serving import Serving
from strandline.serving.messages import made, packed, unpacked

pytestmark = pytest.mark.spark

ASKED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "all facts": ("CommandGetSqlInfo", {}),
    "the facts of a new ADBC connection": ("CommandGetSqlInfo", {"info": [0, 1, 2, 3, 4, 5, 6, 7, 8]}),
    "what JDBC knows of no server": ("CommandGetSqlInfo", {"info": [100, 500, 504, 508, 517, 563, 564, 577, 9_999]}),
    "catalogs": ("CommandGetCatalogs", {}),
    "schemas": ("CommandGetDbSchemas", {}),
    "schemas of a catalog": ("CommandGetDbSchemas", {"catalog": "", "db_schema_filter_pattern": "%"}),
    "types of tables": ("CommandGetTableTypes", {}),
    "tables": ("CommandGetTables", {"table_name_filter_pattern": "%", "table_types": ["TABLE", "VIEW"]}),
    "tables of a schema": ("CommandGetTables", {"db_schema_filter_pattern": "strandline", "include_schema": True}),
    "columns of a table": (
        "CommandGetTables",
        {"table_name_filter_pattern": "made\\_by\\_tool", "include_schema": True},
    ),
    "primary keys": ("CommandGetPrimaryKeys", {"table": "made_by_tool"}),
    "keys that refer to it": ("CommandGetExportedKeys", {"table": "made_by_tool"}),
    "keys that it refers to": ("CommandGetImportedKeys", {"table": "made_by_tool"}),
    "references": ("CommandGetCrossReference", {"pk_table": "made_by_tool", "fk_table": "made_by_tool"}),
    "types": ("CommandGetXdbcTypeInfo", {}),
    "one type": ("CommandGetXdbcTypeInfo", {"data_type": 12}),
}
"""By what is asked: a question of Flight SQL about what there is."""

CHART: Final = """
SELECT date_trunc('DAY', `at`) AS __timestamp, `city` AS city, sum(n) AS `SUM(n)` FROM made_by_tool
WHERE `at` >= TIMESTAMP '2024-01-01 00:00:00.000000' AND `at` < TIMESTAMP '2024-02-01 00:00:00.000000' AND n > 0
GROUP BY date_trunc('DAY', `at`), `city` ORDER BY `SUM(n)` DESC LIMIT 50000
"""
GREATEST: Final = """
SELECT t.city AS city, count(*) AS count FROM made_by_tool t
JOIN (SELECT city AS city__, count(*) AS mme_inner__ FROM made_by_tool GROUP BY city
ORDER BY mme_inner__ DESC LIMIT 100) AS series_limit ON t.city = city__ GROUP BY t.city ORDER BY t.city
"""
TEXTS: Final[dict[str, tuple[str, list[tuple[Any, ...]] | None]]] = {
    "a ping": ("SELECT 1", [(1,)]),
    "a ping with an end": ("SELECT 1;", [(1,)]),
    "a ping of SQLAlchemy": ("SELECT CAST('test plain returns' AS VARCHAR(60)) AS anon_1", [("test plain returns",)]),
    "a text for Unicode": ("SELECT CAST('test unicode returns' AS STRING) AS anon_1", [("test unicode returns",)]),
    "a ping with DBeaver's name": ("/* ApplicationName=DBeaver 25 - Main */ SELECT 1", [(1,)]),
    "a ping with Superset's hash": ("SELECT 1\n-- 6dcd92a04feb50f14bbcf07c661680ba", [(1,)]),
    "whether a table is there": ("SELECT * FROM made_by_tool WHERE 1 = 0", []),
    "the columns of a table": ("SELECT * FROM made_by_tool LIMIT 0", []),
    "a page of DBeaver": ("SELECT x.city FROM made_by_tool x\nORDER BY x.city LIMIT 2 OFFSET 0", [("a",), ("b",)]),
    "DBeaver counts": ("SELECT count(*) FROM (\nSELECT * FROM made_by_tool\n) dbvrcnt", [(2,)]),
    "DBeaver sorts": ("SELECT z_q.n FROM (\nSELECT * FROM made_by_tool\n) z_q ORDER BY 1 DESC", [(2,), (1,)]),
    "DBeaver filters": ("SELECT city FROM made_by_tool x\nWHERE `city` LIKE 'b%'", [("b",)]),
    "a dataset that is a query": (
        "SELECT city AS city, n AS n FROM (SELECT * FROM made_by_tool) AS virtual_table ORDER BY n LIMIT 1001",
        [("a", 1), ("b", 2)],
    ),
    "values of a filter": ("SELECT DISTINCT city FROM made_by_tool ORDER BY city LIMIT 10000", [("a",), ("b",)]),
    "bounds of a time": ("SELECT date(MIN(at)) AS __start, MAX(n) FROM made_by_tool", None),
    "a chart over time": (CHART, None),
    "the greatest series": (GREATEST, [("a", 1), ("b", 1)]),
    "a rate": ("SELECT sum(n) / NULLIF(count(*), 0) AS `per row` FROM made_by_tool HAVING count(*) > 0", [(1.5,)]),
    "shown tables": ("SHOW TABLES", None),
    "a described table": ("DESCRIBE made_by_tool", None),
    "a relation of a schema": ("SELECT count(*) > 0 FROM strandline.frontiers", [(True,)]),
    "the same with every name in quotes": (
        "SELECT `frontiers`.`name` FROM `strandline`.`frontiers` WHERE `name` = 'made_by_tool'",
        [("made_by_tool",)],
    ),
}
"""By who sends it: a query, and its rows (None: any)."""

REFUSED: Final = {
    "SQLAlchemy's schema": ("SELECT name FROM information_schema.schemata", "information_schema.schemata"),
    "tables by standard": ("SELECT table_name FROM information_schema.tables", "information_schema"),
    "a table of another schema": ("SELECT * FROM public.made_by_tool", "there is no collection 'public.made_by_tool'"),
    "PostgreSQL's catalog": ("SELECT relname FROM pg_catalog.pg_class", "pg_catalog"),
    "another schema": ("USE other", "USE"),
    "a setting": ("SET search_path = x", "SET"),
    "a plan": ("EXPLAIN SELECT * FROM made_by_tool", "EXPLAIN"),
    "a bracket": ("BEGIN", "BEGIN"),
    "two statements": ("SELECT 1; SELECT 2", "one"),
    "no statement": ("-- nothing", ""),
    "a wrong column": ("SELECT nope FROM made_by_tool", "unknown column nope"),
}
"""By who sends it: what is refused, and a word that the refusal says."""


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[flight.FlightClient]:
    """A client that sends messages as they are, and a table."""
    env = served.desk.env
    env.execute("CREATE TABLE made_by_tool (city STRING, n INT, at TIMESTAMP)")
    env.execute("INSERT INTO made_by_tool VALUES ('a', 1, TIMESTAMP '2024-01-01 10:00:00'), ('b', 2, NULL)")
    with flight.FlightClient(served.flight_sql[0]) as made_client:
        yield made_client
    env.execute("DROP TABLE made_by_tool")


def asked(client: flight.FlightClient, command: Any) -> pa.Table:
    """Ask as the drivers do: where the answer is, then for it; the columns are those that were promised."""
    descriptor = flight.FlightDescriptor.for_command(packed(command))
    info = client.get_flight_info(descriptor)
    (endpoint,) = info.endpoints
    found = client.do_get(endpoint.ticket).read_all()
    assert found.schema.equals(info.schema)
    return found


@pytest.mark.parametrize("what", ASKED)
def test_a_question_of_a_driver_is_answered(client: flight.FlightClient, what: str) -> None:
    """Damage: a tool that asks this as it connects shows an error in place of the tables."""
    kind, fields = ASKED[what]
    found = asked(client, made(kind, **fields))
    assert found.schema.equals(
        client.get_schema(flight.FlightDescriptor.for_command(packed(made(kind, **fields)))).schema
    )
    if kind == "CommandGetTables" and "include_schema" in fields:
        for each in found["table_schema"].to_pylist():
            assert pa.ipc.read_schema(pa.py_buffer(each)).names


@pytest.mark.parametrize("who", TEXTS)
def test_a_text_of_a_tool_is_answered(client: flight.FlightClient, who: str) -> None:
    """Damage: a tool that sends this says that the server is broken."""
    text, rows = TEXTS[who]
    command = made("CommandStatementQuery", query=text)
    known = client.get_schema(flight.FlightDescriptor.for_command(packed(command))).schema
    found = asked(client, command)
    assert found.schema.names == known.names
    if rows is not None:
        assert [tuple(row.values()) for row in found.to_pylist()] == rows


def test_a_prepared_text_says_its_columns_and_is_asked_twice(client: flight.FlightClient) -> None:
    """Damage: JDBC, which prepares every text, shows no columns, or rows of before."""
    body = packed(made("ActionCreatePreparedStatementRequest", query="SELECT city, n FROM made_by_tool WHERE n > ?"))
    (result,) = client.do_action(flight.Action("CreatePreparedStatement", body))
    prepared = unpacked(result.body.to_pybytes())
    assert pa.ipc.read_schema(pa.py_buffer(prepared.dataset_schema)).names == ["city", "n"]
    assert pa.ipc.read_schema(pa.py_buffer(prepared.parameter_schema)).types == [pa.int32()]
    command = made("CommandPreparedStatementQuery", prepared_statement_handle=prepared.prepared_statement_handle)
    descriptor = flight.FlightDescriptor.for_command(packed(command))
    for least, rows in ((1, 1), (0, 2)):
        given = pa.record_batch([pa.array([least], pa.int32())], ["1"])
        writer, reader = client.do_put(descriptor, given.schema)
        with writer:
            writer.write_batch(given)
            writer.done_writing()
            assert reader.read() is not None
        assert asked(client, command).num_rows == rows
    body = packed(
        made("ActionClosePreparedStatementRequest", prepared_statement_handle=prepared.prepared_statement_handle)
    )
    assert list(client.do_action(flight.Action("ClosePreparedStatement", body))) == []


def test_turning_autocommit_off_and_on_begins_and_ends_transactions(client: flight.FlightClient) -> None:
    """Damage: a tool that leaves autocommit keeps its rows from all others, or loses them."""
    count = made("CommandStatementQuery", query="SELECT count(*) FROM made_by_tool WHERE city = 'c'")
    for action, rows in ((2, 0), (1, 1)):
        (result,) = client.do_action(flight.Action("BeginTransaction", packed(made("ActionBeginTransactionRequest"))))
        handle = unpacked(result.body.to_pybytes()).transaction_id
        insert = made(
            "CommandStatementUpdate", query="INSERT INTO made_by_tool VALUES ('c', -1, NULL)", transaction_id=handle
        )
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(packed(insert)), pa.schema([]))
        with writer:
            writer.done_writing()
            assert reader.read() is not None
        body = packed(made("ActionEndTransactionRequest", transaction_id=handle, action=action))
        assert list(client.do_action(flight.Action("EndTransaction", body))) == []
        assert asked(client, count).column(0).to_pylist() == [rows]
    served_delete = made("CommandStatementUpdate", query="DELETE FROM made_by_tool WHERE city = 'c'")
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(packed(served_delete)), pa.schema([]))
    with writer:
        writer.done_writing()
        assert reader.read() is not None


@pytest.mark.parametrize("who", REFUSED)
def test_what_has_no_answer_is_refused_in_a_sentence(client: flight.FlightClient, who: str) -> None:
    """Damage: a person sees a stack of Java or of Python, and not what this server has in its place."""
    text, word = REFUSED[who]
    with pytest.raises(pa.ArrowException) as caught:
        asked(client, made("CommandStatementQuery", query=text))
    said = str(caught.value)
    assert word in said
    assert "Traceback" not in said
    assert "\tat " not in said
    assert "org.apache" not in said


def test_a_call_that_flight_sql_has_and_this_server_not_is_refused_by_its_name(client: flight.FlightClient) -> None:
    """Damage: a driver that cancels, or sets a session's option, waits or takes the connection for broken."""
    for action in (
        "CancelQuery",
        "CancelFlightInfo",
        "SetSessionOptions",
        "GetSessionOptions",
        "CloseSession",
        "BeginSavepoint",
    ):
        with pytest.raises(pa.ArrowException, match=f"there is no action '{action}'"):
            list(client.do_action(flight.Action(action, b"")))
