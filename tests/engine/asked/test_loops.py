"""An answer whose rows take long each is computed so that its tasks notice their end, and has the same rows."""

from __future__ import annotations

from typing import Any

import pytest

from compiled import COMPILED
from strandline.engine.asked.catalyst import Loops
from strandline.engine.session.start import adopt

pytestmark = pytest.mark.spark

LONG = {
    "nested loop": "SELECT a.id, b.id AS other FROM range(5) a JOIN range(4) b ON a.id < b.id ORDER BY 1, 2",
    "one-sided": "SELECT a.id, b.id AS other FROM range(3) a LEFT JOIN range(4) b ON a.id * b.id = 4 ORDER BY 1, 2",
    "generator": "SELECT id, x FROM range(3) LATERAL VIEW explode(sequence(0, id)) t AS x ORDER BY 1, 2",
}
"""Queries with such a step."""
SHORT = {
    "keys": "SELECT a.id FROM range(5) a JOIN range(4) b USING (id) ORDER BY 1",
    "names": "SELECT id AS `Generate x`, 'BroadcastNestedLoopJoin' AS t FROM range(3)",
}


def generated(rows: Any) -> bool:
    """Return whether Spark generates code for whole stages."""
    return "*(" in rows._jdf.queryExecution().executedPlan().toString()


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    """A session as the engine has it, which compiles as in production."""
    return adopt(spark, COMPILED)


@pytest.mark.parametrize("name", LONG)
def test_a_step_that_takes_long_for_a_row_looks_at_each_row_whether_it_is_cancelled(session: Any, name: str) -> None:
    """Damage: a cross join cannot be ended; or its answer differs from that of the plan that was described."""
    rows = session.sql(LONG[name])
    assert generated(rows), "the test shows nothing otherwise"
    found = Loops(session).interruptible(rows)
    assert not generated(found)
    assert found.schema == rows.schema
    assert found.collect() == rows.collect()


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("SELECT a.id FROM range(9) a, range(9) b, range(9) c WHERE hash(a.id, b.id, c.id) % 2 = 1", True),
        (
            "SELECT a.id FROM range(9) a, (SELECT id % 3 AS k FROM range(9) GROUP BY 1) b WHERE hash(id, k) % 2 = 1",
            True,
        ),
        ("SELECT x FROM range(9) LATERAL VIEW explode(sequence(0, id)) t AS x", False),
    ],
)
def test_a_loop_has_no_more_tasks_than_there_are_cores(session: Any, text: str, loops: bool) -> None:
    """Damage: one careless query has all slots until its end, and no tick and no other query gets one."""
    cores = session.sparkContext.defaultParallelism
    found = Loops(session).interruptible(session.sql(text))
    tasks = found._jdf.queryExecution().executedPlan().execute().getNumPartitions()
    assert 1 <= tasks <= cores if loops else tasks == cores, found._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize("name", SHORT)
def test_other_plans_stay_as_they_are(session: Any, name: str) -> None:
    """Damage: all queries become slower."""
    rows = session.sql(SHORT[name])
    assert Loops(session).interruptible(rows) is rows
