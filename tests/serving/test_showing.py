"""Clients ask what there is, and end a query that takes too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

import strandline
from strandline.client import Cancel
from strandline.errors import AsOfError, DefinitionError, InvalidUsage
from strandline.serving import RemoteEnvironment, Serving

pytestmark = pytest.mark.spark

ENDLESS = "SELECT count(*) AS n FROM range(1000000) a CROSS JOIN range(1000000) b WHERE hash(a.id, b.id) = 7"


def test_every_client_asks_what_there_is(served: Serving) -> None:
    """Damage: a person at another program than ours cannot ask which collections there are."""
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW VIEWS")
        assert cursor.fetch_arrow_table().to_pylist()[0]["reads"] == "sales"
        cursor.execute("DESCRIBE sales")
        assert cursor.fetchall() == [("city", "string", None), ("n", "int", None)]
    with strandline.connect(served.flight_sql[0]) as remote:
        (row,) = remote.query("SHOW CREATE totals").collect()
        assert row["statement"].startswith("CREATE MATERIALIZED VIEW totals AS\nSELECT city")
        assert remote.answer("EXPLAIN totals")[0].column("plan")[0].as_py() == "imports: sales"
        with pytest.raises(AsOfError, match="definitions have no history"):
            remote.query("SHOW TABLES", as_of=5)
        with pytest.raises(DefinitionError, match="did you mean 'totals'"):
            remote.query("EXPLAIN total")
        with pytest.raises(InvalidUsage, match="env.subscribe"):
            remote.execute("SUBSCRIBE totals")


def ends(answer: Callable[[str, Cancel], object], spark: Any) -> str:
    """Cancel a query that would take hours once Spark computes it; return how it ends, when no job goes on."""
    cancel, tracker, said = Cancel(), spark.sparkContext.statusTracker(), []

    def ask() -> None:
        with pytest.raises(InvalidUsage) as caught:
            answer(ENDLESS, cancel)
        said.append(str(caught.value))

    asking = threading.Thread(target=ask)  # noqa: TID251 - as the shell's worker
    asking.start()
    wait = threading.Event().wait
    while asking.is_alive() and not tracker.getActiveJobsIds():
        wait(0.05)
    cancel()
    asking.join(60)
    while tracker.getActiveJobsIds():
        wait(0.05)
    return said[0]


def test_a_query_that_is_cancelled_costs_nothing_more(served: Serving, spark: Any) -> None:
    """Damage: a person interrupts a query by mistake, and it takes the machine for hours."""
    with strandline.connect(served.flight_sql[0]) as remote:
        assert ends(lambda sql, cancel: remote.answer(sql, cancel=cancel), spark) == "the query was cancelled"
        assert remote.query("SELECT 1 AS n").collect() == [{"n": 1}], "the connection goes on"
        with pytest.raises(InvalidUsage, match="the query was cancelled"):
            late(remote)
    env = served.desk.env
    assert ends(lambda sql, cancel: env.answer(sql, cancel=cancel), spark) == "the query was cancelled"


def late(remote: RemoteEnvironment) -> None:
    """Ask what was cancelled before it was asked."""
    cancel = Cancel()
    cancel()
    remote.answer(ENDLESS, cancel=cancel)
