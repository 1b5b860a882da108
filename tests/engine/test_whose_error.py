"""Whose error it is does not depend on what the row says, nor on where Spark meets it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from failing_calls import CALLS, STORIES, of_every_function
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.engine.frames.failures import as_ours
from strandline.engine.session.causes import causes
from strandline.engine.session.collecting import collected
from strandline.engine.session.start import adopt
from strandline.engine.sql.answers import expanded
from strandline.errors import CollectionError, EvaluationError

pytestmark = pytest.mark.spark

DDL = "id INT, s STRING, n INT, d DOUBLE"
FUNCTIONS_MIN = 50
"""So many functions fail at least: fewer, and the calls are no longer calls."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own."""
    return adopt(spark)


def _written(rows: DataFrame, to: Path) -> None:
    rows.write.mode("overwrite").parquet(str(to))


Way = Callable[[SparkSession, str, Path], object]
WAYS: dict[str, Way] = {
    "in a job": lambda session, call, _: collected(session.sql(f"SELECT id, {call} AS v FROM spread"), session, "x"),
    "written": lambda session, call, to: _written(session.sql(f"SELECT id, CAST({call} AS STRING) FROM spread"), to),
    "sorted": lambda session, call, _: session.sql(
        f"SELECT count(DISTINCT CAST({call} AS STRING)) FROM spread"
    ).toArrow(),
    "local": lambda session, call, _: session.sql(f"SELECT id, {call} AS v FROM local").toArrow(),
    "broadcast": lambda session, call, _: collected(
        session.sql(
            f"SELECT /*+ BROADCAST(b) */ * FROM spread a JOIN (SELECT id AS i, {call} AS v FROM spread) b ON id = i"
        ),
        session,
        "x",
    ),
    "a subquery": lambda session, call, _: collected(
        session.sql(f"SELECT id, (SELECT max(CAST({call} AS STRING)) FROM spread) AS v FROM spread"), session, "x"
    ),
}


def rows_with(session: SparkSession, said: str) -> None:
    """Let there be a row that says ``said``, here and in the partitions of a job."""
    local = session.createDataFrame([(1, said, 1, 0.5)], DDL)
    local.createOrReplaceTempView("local")
    local.repartition(2).createOrReplaceTempView("spread")


def raised(session: SparkSession, way: str, call: str, to: Path) -> Exception | None:
    """Return what a call raises, evaluated in one of the ways."""
    try:
        WAYS[way](session, call, to)
    except Exception as error:  # noqa: BLE001 - it is what is asked for
        return error
    return None


def blamed(session: SparkSession, way: str, call: str, said: str, to: Path) -> None:
    """Assert that a call that fails for a row is the row's error."""
    rows_with(session, said)
    error = raised(session, way, call, to)
    assert error is not None, f"{call} has a value for {said!r}"
    assert type(as_ours(error)) is EvaluationError, f"{call}, {way}, {said!r}: {as_ours(error)!r}, {causes(error)}"


@pytest.mark.drawn(10)
@pytest.mark.parametrize("number", range(len(CALLS)), ids=CALLS)
def test_a_row_that_fails_is_to_blame_whatever_it_says(session: SparkSession, number: int, tmp_path: Path) -> None:
    """Damage: a stranger's row stops a view, and its text chooses the story: a full disk, a silent store."""
    for other, way in enumerate(WAYS):
        blamed(session, way, CALLS[number], STORIES[(number + other) % len(STORIES)], tmp_path / "out")


@pytest.mark.slow
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("way", WAYS)
def test_every_row_that_fails_is_to_blame_in_every_way(session: SparkSession, way: str, tmp_path: Path) -> None:
    """The same of all calls and all that a row may say."""
    for said in STORIES:
        for call in CALLS:
            blamed(session, way, call, said, tmp_path / "out")


def failing(
    session: SparkSession, tries: int, seed: int, to: Path, form: str = "{call}"
) -> Iterator[tuple[str, str, Exception]]:
    """Yield calls of all functions that fail, written in a form, for the row that is there."""
    for name, drawn in of_every_function(random.Random(seed), tries):
        call = form.format(call=drawn)
        try:
            kinds = session.sql(f"SELECT {call} AS v FROM spread").schema.simpleString()
        except (PySparkException, Py4JJavaError):  # the latter where Spark fails to say what is wrong
            continue
        if "void" in kinds:  # Arrow has no values of it, and no view has such a column
            continue
        error = raised(session, "in a job", call, to)
        if error is None or isinstance(error, AnalysisException):
            continue
        if any(causes(error)):  # else this process has no form for the value, such as an interval
            yield name, call, error


@pytest.mark.slow
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("seed", range(3))
def test_every_function_that_fails_blames_the_row(session: SparkSession, seed: int, tmp_path: Path) -> None:
    """Damage: a function is left out whose exception is of a class on no list."""
    rows_with(session, STORIES[seed])
    found: Counter[str] = Counter()
    wrong = []
    for name, call, error in failing(session, 12, seed, tmp_path):
        found[name] += 1
        if type(as_ours(error)) is not EvaluationError:
            wrong.append((call, as_ours(error), [each.classes[0] for each in causes(error)]))
    assert wrong == [], f"of {sum(found.values())} calls of {len(found)} functions that fail"
    assert len(found) > FUNCTIONS_MIN, f"{sum(found.values())} calls"


def test_a_count_below_zero_is_no_row_that_says_so(session: SparkSession) -> None:
    """Damage: a broken promise of an upstream is taken for a row that fails, or a row's words for such a promise."""
    updates = session.createDataFrame([("it's", 1), ("it's", -2)], "k STRING, __diff BIGINT")
    with pytest.raises(Exception, match="negative count") as caught:
        collected(expanded(updates, ["k"]), session, "x")
    found = as_ours(caught.value)
    assert type(found) is CollectionError
    assert str(found) == 'a row has the negative count -1: {"k":"it\'s"}'
