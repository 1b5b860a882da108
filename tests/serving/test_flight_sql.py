"""Clients of every kind talk to an environment that is open in another thread: an unmodified ADBC driver, and ours."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from pyarrow import flight
from tests.instance.carriers.test_flight import certificate
from tests.serving.conftest import SECRET

import strandline
from strandline.client import Progress, Updates
from strandline.errors import AsOfError, ConfigError, DefinitionError, InvalidUsage, Unavailable
from strandline.serving import Door, RemoteEnvironment, Serving, serve
from strandline.serving.desk import Desk
from strandline.store.secret import Secret

pytestmark = pytest.mark.spark


def read_own_writes(cursor: Any, city: str) -> None:
    """Insert a row and read a view over it, several times."""
    for n in range(1, 6):
        cursor.execute("INSERT INTO sales VALUES (?, ?)", (city, n))
        cursor.execute("SELECT n FROM totals WHERE city = ?", (city,))
        assert cursor.fetchall() == [(sum(range(n + 1)),)]


def test_an_answer_has_all_that_was_acknowledged_before_it_was_asked(cursor: Any) -> None:
    """Law E1.  Damage: a program inserts a row, reads a view, and does not find its own row in it."""
    read_own_writes(cursor, "Delft")


def test_a_desk_that_forgets_what_it_acknowledged_is_caught(cursor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above passes whatever the desk does."""
    monkeypatch.setattr(Desk, "_acknowledge", lambda _, time: time)
    with pytest.raises(AssertionError):
        read_own_writes(cursor, "Leiden")


def test_rows_come_in_bulk_and_make_their_table(cursor: Any) -> None:
    """Damage: pandas and polars cannot write."""
    rows = pa.table({"a b": [1.5, None], "day": pa.array([0, 1], pa.date32()), "raw": [b"\0", b""]})
    assert cursor.adbc_ingest("bulk", rows, mode="create") == 2
    assert cursor.adbc_ingest("bulk", rows, mode="append") == 2
    cursor.execute("SELECT * FROM bulk WHERE `a b` IS NOT NULL")
    assert cursor.fetch_arrow_table().num_rows == 2
    with pytest.raises(adbc.ProgrammingError, match="table 'bulk' is there already"):
        cursor.adbc_ingest("bulk", rows, mode="create")


def test_parameters_are_values(cursor: Any) -> None:
    """Damage: a text with a quote in it changes what a statement means."""
    hostile = "x'); DROP TABLE sales; --"
    cursor.executemany("INSERT INTO sales VALUES (?, ?)", [(hostile, 1), (hostile, None)])
    cursor.execute("SELECT count(*), sum(n) FROM sales WHERE city = ?", (hostile,))
    assert cursor.fetchall() == [(2, 1)]


def commit_and_roll_back(served: Serving, city: str) -> None:
    """Insert two rows in a transaction and a third in one that is rolled back, and count them."""
    count = f"SELECT count(*), sum(n) FROM sales WHERE city = '{city}'"
    with adbc.connect(served.flight_sql[0]) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO sales VALUES (?, 1)", (city,))
        cursor.execute("INSERT INTO sales VALUES (?, 2)", (city,))
        cursor.execute(count)
        assert cursor.fetchall() == [(0, None)], "a transaction sees the tables as they were before it"
        connection.commit()
        cursor.execute("INSERT INTO sales VALUES (?, 3)", (city,))
        connection.rollback()
        cursor.execute(count)
        assert cursor.fetchall() == [(2, 3)]


def test_a_transaction_is_whole_or_not_at_all(served: Serving) -> None:
    """Law E2.  Damage: half of what a tool wrote stays when it rolls back."""
    commit_and_roll_back(served, "together")


def test_a_transaction_that_commits_each_statement_is_caught(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above passes whatever becomes of a transaction."""
    monkeypatch.setattr(Desk, "executed", lambda desk, text, _=b"": desk.env.execute(text))
    with pytest.raises(AssertionError, match="as they were before"):
        commit_and_roll_back(served, "one by one")


def test_what_is_wrong_is_one_sentence_with_its_position(cursor: Any, remote: RemoteEnvironment) -> None:
    """Damage: a person sees a stack, and not which word is wrong."""
    with pytest.raises(adbc.ProgrammingError, match=r"unknown column nope; .* \(at line 1, column 8\)"):
        cursor.execute("SELECT nope FROM sales")
    with pytest.raises(DefinitionError, match="unknown column nope") as caught:
        remote.query("SELECT nope FROM sales")
    assert str(caught.value.position) == "line 1, column 8"
    with pytest.raises(InvalidUsage, match="a query returns rows"):
        remote.execute("SELECT 1")
    with pytest.raises(InvalidUsage, match="there is no call 'close'"):
        remote.call("close")
    with pytest.raises(AsOfError, match="'sales' is not complete at 9223372036854775807 yet"):
        remote.query("SELECT * FROM sales", as_of=2**63 - 1)


def test_a_tool_lists_what_there_is(cursor: Any) -> None:
    """Damage: no tool shows the collections."""
    found = cursor.connection.adbc_get_objects(depth="columns", table_name_filter="totals").read_all().to_pylist()
    tables = [t for c in found for s in c["catalog_db_schemas"] for t in s["db_schema_tables"]]
    assert [(t["table_name"], t["table_type"]) for t in tables] == [("totals", "VIEW")]
    assert [column["column_name"] for column in tables[0]["table_columns"]] == ["city", "n"]
    assert cursor.connection.adbc_get_info()["vendor_name"] == "Strandline"


def test_our_client_has_the_face_of_an_environment(remote: RemoteEnvironment) -> None:
    """Damage: a program has to be written anew where another process writes."""
    first = remote.insert("sales", [{"city": "Ghent", "n": 1}, {"city": "Ghent", "n": None}])
    second = remote.execute("INSERT INTO sales VALUES ('Ghent', 5)")
    assert second is not None
    assert second > first
    rows, at = remote.answer("SELECT * FROM totals WHERE city = 'Ghent'")
    assert rows.to_pylist() == [{"city": "Ghent", "n": 6}]
    assert at is not None
    assert at >= second
    assert remote.query("SELECT count(*) AS n FROM sales WHERE city = 'Ghent'", as_of=first).collect() == [{"n": 2}]
    with remote.transaction() as transaction:
        transaction.delete("sales", [{"city": "Ghent", "n": 1}])
        transaction.insert("sales", pa.table({"city": ["Ghent"], "n": pa.array([7], pa.int32())}))
    assert str(remote.query("SELECT n FROM totals WHERE city = 'Ghent'")) == "n\n12"
    assert remote.verify("totals").ok
    assert remote.explain("totals").incremental
    assert remote.collection("SALES").schema.names == ("city", "n")
    assert remote.peek("totals", {"city": "Ghent"}).to_pylist() == [{"city": "Ghent", "n": 12}]
    assert remote.status()["collections"]["totals"]["phase"] == "following"
    remote.sync(remote.tick(), timeout=150)
    token = remote.insert("sales", [{"city": "once", "n": 1}], token="t1")
    assert remote.insert("sales", [{"city": "once", "n": 1}], token="t1") == token


@pytest.mark.parametrize("what", ["totals", "SELECT city, n FROM sales WHERE city = 'followed'"])
def test_a_subscription_has_every_change_once(remote: RemoteEnvironment, what: str) -> None:
    """Damage: a client that follows a view over the network misses a change, or counts it twice."""
    sums: dict[int, int] = {}
    with closing(remote.subscribe(what)) as events:
        asked = remote.insert("sales", [{"city": "followed", "n": 40}])
        wanted = remote.insert("sales", [{"city": "followed", "n": 2}])
        for event in events:
            match event:
                case Updates(rows):
                    for row in rows.to_pylist():
                        if row["city"] == "followed":
                            sums[row["n"]] = sums.get(row["n"], 0) + row["__diff"]
                case Progress(upper) if upper is not None and upper > max(asked, wanted):
                    break
    remote.delete("sales", [{"city": "followed", "n": 40}, {"city": "followed", "n": 2}])
    assert {n: diff for n, diff in sums.items() if diff} == ({42: 1} if what == "totals" else {40: 1, 2: 1})


def test_a_subscription_to_what_is_dropped_fails(remote: RemoteEnvironment) -> None:
    """Damage: a client that copies a table over the network takes DROP for the end of its changes."""
    remote.execute("CREATE TABLE gone (a INT)")
    with closing(remote.subscribe("gone")) as events:
        assert isinstance(next(events), Progress)
        remote.execute("DROP TABLE gone")
        with pytest.raises(AsOfError, match="'gone' was dropped: this subscription has every update of it"):
            assert Progress(None) not in list(events)


def test_a_view_that_was_defined_a_moment_ago_is_waited_for(remote: RemoteEnvironment) -> None:
    """Damage: a script that creates a view and asks for it ends half-way."""
    remote.execute("CREATE MATERIALIZED VIEW at_once AS SELECT count(*) AS n FROM sales")
    remote.execute("INSERT INTO sales VALUES ('at once', 1)")
    (row,) = remote.query("SELECT n FROM at_once").collect()
    assert row["n"] >= 0
    remote.execute("CREATE MATERIALIZED VIEW by_city AS SELECT city, count(*) AS n FROM sales GROUP BY city")
    assert remote.peek("by_city", {"city": "at once"}).num_rows == 1
    remote.execute("DROP MATERIALIZED VIEW at_once")
    remote.execute("DROP MATERIALIZED VIEW by_city")


def test_no_caller_comes_in_without_the_token(served: Serving) -> None:
    """Damage: every local user reads and writes."""
    socket, address = served.flight_sql
    directory = Path(socket.removeprefix("grpc+unix://")).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for token in (None, "another"):
        with strandline.connect(address, token=token) as stranger, pytest.raises(ConfigError, match="wants its own"):
            stranger.status()
    with strandline.connect(address, token=SECRET) as known:
        assert known.query("SELECT 1 AS one").collect() == [{"one": 1}]
    header = adbc_driver_flightsql.DatabaseOptions.AUTHORIZATION_HEADER.value
    with (
        adbc.connect(address, db_kwargs={header: f"Bearer {SECRET}"}, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("door", "why"),
    [
        (Door("0.0.0.0:0", Secret(SECRET)), "is not loopback, so serving there needs TLS"),
        (Door("127.0.0.1:0"), "needs a token"),
        (Door("127.0.0.1:0", Secret(SECRET), Path("a.pem")), "TLS needs both files"),
        (Door("nowhere", Secret(SECRET)), "is not an address"),
    ],
)
def test_an_address_that_lets_strangers_in_is_refused(door: Door, why: str) -> None:
    """Damage: rows cross the network for every listener to read."""
    with pytest.raises(ConfigError, match=why):
        assert door.place


def test_what_crosses_a_network_needs_tls_at_both_ends(spark: Any, tmp_path: Path) -> None:
    """Damage: the token and the rows can be read by everyone between, or go to another server than the one meant."""
    proof, key = certificate(tmp_path / "server")
    other, _ = certificate(tmp_path / "other")
    door = Door("127.0.0.1:0", Secret(SECRET), proof, key)
    with strandline.open(f"file://{tmp_path}/data", spark=spark) as env, serve(env, door, lambda: None) as serving:
        address = next(each for each in serving.flight_sql if each.startswith("grpc+tls://"))
        with strandline.connect(address, token=SECRET, authority=str(proof)) as known:
            assert known.query("SELECT 1 AS one").collect() == [{"one": 1}]
        with strandline.connect(address, authority=str(proof)) as stranger, pytest.raises(ConfigError):
            stranger.status()
        plain = address.replace("grpc+tls", "grpc+tcp")
        for place, authority in ((plain, None), (address, str(other)), (address, None)):
            refused: type[Exception] = Unavailable if place == plain else ConfigError
            with strandline.connect(place, token=SECRET, authority=authority) as wrong, pytest.raises(refused):
                wrong.status()
    for far in ("192.0.2.1:8815", "db.example:8815"):
        with pytest.raises(ConfigError, match=f"needs TLS: connect to 'grpc.tls://{far}'"):
            strandline.connect(f"grpc+tcp://{far}", token=SECRET)


def test_garbage_costs_other_clients_nothing(served: Serving, cursor: Any) -> None:
    """Damage: one broken client ends the process that writes."""
    client = flight.FlightClient(served.flight_sql[0])
    for command in (b"", b"\xff" * 100, b"strandline.rows {", b"strandline.query 7"):
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            client.get_flight_info(flight.FlightDescriptor.for_command(command))
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            client.do_get(flight.Ticket(command)).read_all()
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        list(client.do_action(flight.Action("strandline.call", b'{"method": 1}')))
    client.close()
    cursor.execute("SELECT 1")
    assert cursor.fetchall() == [(1,)]


def test_where_no_process_serves_is_said(tmp_path: Path) -> None:
    """Damage: a program waits for a process that is not there."""
    with pytest.raises(ConfigError, match="no process serves the location"):
        strandline.connect(str(tmp_path))
    with strandline.connect(f"grpc+unix://{tmp_path}/nothing.sock") as gone, pytest.raises(Unavailable):
        gone.status()
