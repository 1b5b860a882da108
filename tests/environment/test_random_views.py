"""Random views over random histories: after every tick each is what plain Spark says, and none stops another.

To look at one view: its text is `random_views.random_view(seed)`; ``STRANDLINE_VIEWS=17,23`` runs these seeds alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from random_views import TABLES, History, quoted, random_view

from strandline.client import Environment
from strandline.errors import CollectionError, DefinitionError

if TYPE_CHECKING:
    from tests.environment.conftest import Place

pytestmark = pytest.mark.views

VIEWS: Final = 25
"""Views in one environment."""
TICKS: Final = 3
QUICK: Final = range(0, 150, VIEWS)
LONG: Final = range(1_000, 4_000, VIEWS)
REFUSED_MAX: Final = VIEWS // 5


INTERPRETED: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few rows and many plans: compiling them would take most of the time.  Other tests compile theirs."""


def _plain(spark: SparkSession) -> SparkSession:
    """Return a session of plain Spark, tuned for a few rows."""
    session = spark.newSession()
    for name, value in {
        **INTERPRETED,
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.constraintPropagation.enabled": "false",  # else it cannot plan EXISTS over a union
    }.items():
        session.conf.set(name, value)
    return session


def _answer(ask: Callable[[], DataFrame], failure: type[Exception]) -> Counter[tuple[str, ...]] | None:
    """Return the rows of an answer, or None if some row has none."""
    try:
        return _rows(ask())
    except failure:
        return None


def _rows(frame: DataFrame) -> Counter[tuple[str, ...]]:
    """Return a multiset of rows as text, floats to 12 significant digits."""
    found = (tuple(f"{v + 0.0:.12g}" if isinstance(v, float) else repr(v) for v in row) for row in frame.collect())
    return Counter(found)


def _create(env: Environment, plain: SparkSession, seeds: list[int]) -> dict[int, str]:
    """Create the views of ``seeds``; a refusal must be Spark's, or for want of an order."""
    made, refused = {}, {}
    for seed in seeds:
        sql, _ = random_view(seed)
        try:
            env.execute(f"CREATE MATERIALIZED VIEW v{seed} AS {sql}")
        except DefinitionError as error:
            refused[seed] = error.message
        else:
            made[seed] = sql
    for seed, message in refused.items():
        assert "definite" in message or not _accepts(plain, random_view(seed)[0]), f"view {seed}: {message}"
    assert len(refused) <= REFUSED_MAX, f"too many views are refused to show anything: {refused}"
    return made


def _accepts(plain: SparkSession, sql: str) -> bool:
    try:
        plain.sql(sql)
    except PySparkException:
        return False
    return True


def follow(place: Place, first: int, seeds: list[int]) -> None:
    """Create the views, let a history happen, and compare every view with plain Spark after each tick."""
    plain, history = _plain(place.spark), History(first)
    with place.open(config={"spark": INTERPRETED}) as env:
        for table in TABLES:
            env.execute(f"CREATE TABLE {quoted(table.name)} ({table.ddl})")
            plain.createDataFrame([], table.ddl).createOrReplaceTempView(quoted(table.name))
        views = _create(env, plain, seeds)
        wrong = []
        for tick in range(TICKS):
            with env.transaction() as transaction:
                for name, (coming, going) in history.step().items():
                    if going:
                        transaction.delete(name, going)
                    transaction.insert(name, coming)
            env.tick()
            assert env.status()["problems"] == {}, f"tick {tick} of the history {first}"
            for table in TABLES:
                rows = [tuple(row.values()) for row in history.held[table.name]]
                plain.createDataFrame(rows, table.ddl).createOrReplaceTempView(quoted(table.name))
            for seed, sql in views.items():
                ours = _answer(partial(env.query, f"SELECT * FROM v{seed}"), CollectionError)
                theirs = _answer(partial(plain.sql, sql), PySparkException)
                if ours != theirs:
                    wrong.append(f"view {seed}, tick {tick}: {ours}\nand not {theirs}\n{sql}")
        assert not wrong, "\n\n".join(wrong)


def _seeds(first: int) -> list[int]:
    chosen = os.environ.get("STRANDLINE_VIEWS")
    return [int(seed) for seed in chosen.split(",")] if chosen else list(range(first, first + VIEWS))


@pytest.mark.parametrize("first", QUICK)
def test_random_views_are_what_plain_spark_says_after_every_tick(first: int, place: Place) -> None:
    """Else some combination of plain SQL gives a wrong answer in silence, or stops every view."""
    follow(place, first, _seeds(first))


@pytest.mark.slow
@pytest.mark.parametrize("first", LONG)
def test_very_many_random_views_are_what_plain_spark_says_after_every_tick(first: int, place: Place) -> None:
    """The same over three thousand views."""
    follow(place, first, _seeds(first))
