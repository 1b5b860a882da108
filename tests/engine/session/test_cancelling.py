"""A call to Spark that is cancelled ends, whenever its jobs begin."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.engine.session.collecting import POOL_KEY, QUERIES, Cancellable, jobs_of_queries

pytestmark = pytest.mark.spark

ENDLESS = "SELECT count(*) FROM range(0, 100000000000, 1, 2) WHERE hash(id) = hash(id + 1)"


def test_a_call_is_cancelled_that_has_no_job_yet(spark: Any) -> None:
    """Damage: a query is cancelled while Spark still plans it, and then runs for hours."""
    planned, go = threading.Event(), threading.Event()

    def call() -> None:
        planned.set()
        assert go.wait(120)
        spark.sql(ENDLESS).collect()

    made = Cancellable(spark, "no job yet", ENDLESS, call)
    with ThreadPoolExecutor(1) as worker:
        running = worker.submit(made)
        assert planned.wait(120)
        made.cancel()
        go.set()
        with pytest.raises(Exception, match="[Cc]ancelled"):
            running.result(120)
        worker.submit(spark.range(3).count).result(120)  # the thread's next call is another one


def test_the_jobs_of_a_query_are_a_group_in_the_pool_of_queries(spark: Any) -> None:
    """Damage: a query holds up ticks, or its tasks compute on after it was cancelled."""
    told = spark.sparkContext.getLocalProperty

    def call() -> tuple[str, ...]:
        keys = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", POOL_KEY)
        return tuple(told(key) for key in keys)

    with ThreadPoolExecutor(1, initializer=jobs_of_queries, initargs=(spark, "engine")) as worker:
        made = Cancellable(spark, "group", "SELECT 1", call)
        assert worker.submit(made).result(120) == ("group", "SELECT 1", "true", QUERIES)
        assert worker.submit(told, "spark.jobGroup.id").result(120) is None
    pool = spark.sparkContext._jsc.sc().getPoolForName(QUERIES)
    assert pool.isDefined()
    assert pool.get().schedulingMode().toString() == "FAIR"
