"""A client that leaves, or cancels a call, costs nothing more: what it asked for ends on the server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

import strandline
from strandline.algebra.schema import Schema
from strandline.client import Leaving
from strandline.compute.plan.asked import require_asking
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.serving import Serving

pytestmark = pytest.mark.spark

VIEW = "CREATE MATERIALIZED VIEW left_alone AS SELECT city, max(n) + {} AS n FROM sales GROUP BY city"
"""Another text in each test: what Spark has answered once it is not asked again."""
ENDLESS = "SELECT count(*) AS n FROM range(1000000) a CROSS JOIN range(1000000) b WHERE hash(a.id, b.id) = 7"


class Held:
    """Holds Spark's answers back for ever; ``asked`` at the first question, ``ended`` once no call waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.ended, self.questions = threading.Event(), threading.Event(), 0

        def held(_: SparkAnalyst, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
            self.questions += 1
            self.asked.set()
            try:
                while not self.ended.wait(0.05):
                    require_asking()
            finally:
                self.ended.set()
            raise AssertionError("it is asked again")

        monkeypatch.setattr(SparkAnalyst, "schema_of", held)


def test_a_statement_that_a_driver_cancels_is_planned_no_further(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: Spark plans for minutes for a person who is gone, and the view appears all the same."""
    with (
        adbc.connect(served.flight_sql[0], autocommit=True) as connection,
        connection.cursor() as cursor,
        ThreadPoolExecutor(1) as other,
    ):
        held = Held(monkeypatch)
        created = other.submit(cursor.execute, VIEW.format(1))
        assert held.asked.wait(60)
        cursor.adbc_cancel()
        assert held.ended.wait(60)
        with pytest.raises(adbc.Error):
            created.result()
    assert held.questions == 1
    assert "left_alone" not in served.desk.env.collections()


def test_a_query_that_a_driver_cancels_is_computed_no_further(served: Serving, spark: Any) -> None:
    """Damage: a person ends a query by mistake, and it takes the machine for hours."""
    jobs, wait = spark.sparkContext.statusTracker().getActiveJobsIds, threading.Event().wait
    with (
        adbc.connect(served.flight_sql[0], autocommit=True) as connection,
        connection.cursor() as cursor,
        ThreadPoolExecutor(1) as other,
    ):
        asked = other.submit(cursor.execute, ENDLESS)
        while not jobs():
            assert not asked.done()
            wait(0.05)
        cursor.adbc_cancel()
        with pytest.raises(adbc.Error):
            asked.result()
        while jobs():
            wait(0.05)


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C once ``when`` returns; it must be raised inside."""

    def press() -> None:
        when()
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # another test may have left its own
    try:
        with ThreadPoolExecutor(1) as other, pytest.raises(KeyboardInterrupt):
            other.submit(press)
            yield
    finally:
        signal.signal(signal.SIGINT, handler)


def test_ctrl_c_in_a_program_ends_what_it_asked_for(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a program cannot be interrupted while the server plans, or the server plans on after it."""
    with strandline.connect(served.flight_sql[0]) as remote:
        held = Held(monkeypatch)
        with interrupted(lambda: held.asked.wait(60)):
            remote.execute(VIEW.format(2))
        assert held.ended.wait(60)
        assert held.questions == 1
        monkeypatch.undo()
        assert remote.query("SELECT 1 AS n").collect() == [{"n": 1}], "the connection goes on"
        assert "left_alone" not in served.desk.env.collections()


def test_a_call_that_is_over_is_looked_at_no_more() -> None:
    """Damage: the server asks gRPC about a call that is freed, and dies of it."""
    looks = {"first": threading.Semaphore(0), "second": threading.Semaphore(0)}

    def left(name: str) -> Callable[[], bool]:
        def look() -> bool:
            looks[name].release()
            return False

        return look

    with closing(Leaving()) as leaving:
        with leaving.watched(left("first")):
            assert looks["first"].acquire(timeout=60)
        over = looks["first"]._value
        with leaving.watched(left("second")):
            assert all(looks["second"].acquire(timeout=60) for _ in range(2))
        assert looks["first"]._value == over
