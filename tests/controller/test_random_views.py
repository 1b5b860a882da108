"""Random views over random histories: after every tick each is what plain Spark says, and none stops another.

Some views hold expressions that fail for some rows, which come, and go at the last tick.  Spark fails a whole query for
one such row, if it evaluates the expression there at all; which rows those are depends on its plan.  So the relation
between a view and the plain query is this (`_wrong`):

- Where both answer, the answers are equal.
- Where Spark fails and the view answers, nothing that failed has a part in the answer: the query answers the same,
  whichever value stands in the place of each failure.
- Where Spark answers and the view has errors, the query fails once Spark neither moves expressions nor leaves them out.
- Once the last bad row has left, the same holds; so a view answers as soon as no row fails under any plan.

A view with errors has no problem in `status`, which counts its errors; nor has any other view one.

Rows and errors are a function of the tables' rows: the same views made afresh elsewhere, over what the tables hold
at some tick, and kept from there on in steps of their own, have the same rows and the same errors at each later tick.

The text of each view has one answer; Spark's plan of it may have several.  So a share of the views is asked of plain
Spark in three ways: rows in three orders, in 1, 2 and 7 partitions.  Where these answers differ, what counts is the
query completed as `verify` completes it (`plan.meaning`), which must have one answer in all three.

To look at one view: its text is `random_views.random_view(seed)`, of one that may fail with ``failing=True``;
``STRANDLINE_VIEWS=17,23`` runs these seeds alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from random_views import STANDINS, TABLES, History, random_view
from tests.controller.conftest import Place

from strandline.algebra.schema import DIFF, TIME, Column, Schema, quote
from strandline.client import Environment
from strandline.compute.plan.meaning import meaning
from strandline.compute.plan.sql import parse, relations
from strandline.controller.asking.reads import latest, updates
from strandline.controller.holding import Hold
from strandline.engine.prepared import plans
from strandline.engine.session.start import sibling
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.errors import CollectionError, DefinitionError
from strandline.persist.handles.contents import Half

pytestmark = pytest.mark.views

VIEWS: Final = 25
"""Views in one environment."""
TICKS: Final = 3
QUICK: Final = range(0, 150, VIEWS)
LONG: Final = range(1_000, 4_000, VIEWS)
REFUSED_MAX: Final = VIEWS // 5
FAILING_STRIDE: Final = 16
"""Of so many seeds the odd ones are in one environment: a step of a view with errors is several plans."""
FAILING_QUICK: Final = range(0, 3 * FAILING_STRIDE, 2 * FAILING_STRIDE)
FAILING_LONG: Final = range(3 * FAILING_STRIDE, 1_032, FAILING_STRIDE)

PARTITIONS: Final = (1, 2, 7)
"""How many partitions the tables have in each of the three ways to ask."""
ASKED_AGAIN: Final = 5
"""Of so many views one is asked in three ways."""

UNPRUNED: Final = {
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in (
            "BooleanSimplification", "CollapseProject", "ColumnPruning", "ConvertToLocalRelation",
            "EliminateLimits", "EliminateOuterJoin", "EliminateSorts", "InferFiltersFromConstraints", "LimitPushDown",
            "LimitPushDownThroughWindow", "NullPropagation", "OptimizeIn", "PropagateEmptyRelation", "PruneFilters",
            "PushDownLeftSemiAntiJoin", "PushDownPredicates", "PushLeftSemiLeftAntiThroughJoin",
            "PushProjectionThroughUnion", "RemoveRedundantAggregates", "SimplifyConditionals", "TransposeWindow",
        )
    ),
}  # fmt: skip
"""Spark as it evaluates everything that a query says, where it says so."""


def _plain(spark: SparkSession, **more: str) -> SparkSession:
    """Return a session of plain Spark, tuned for a few rows."""
    session = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.constraintPropagation.enabled": "false",  # else it cannot plan EXISTS over a union
        "spark.sql.autoBroadcastJoinThreshold": "-1",  # each is a job, and may look at one side only
        "spark.sql.ui.explainMode": "simple",
        **more,
    }.items():
        session.conf.set(name, value)
    return session


Rows: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
Answer: TypeAlias = "Counter[tuple[str, ...]] | None"


def _answer(ask: Callable[[], DataFrame], failure: type[Exception]) -> Answer:
    """Return the rows of an answer, or None if some row has none."""
    try:
        return _rows(ask())
    except failure:
        return None


def _rows(frame: DataFrame) -> Counter[tuple[str, ...]]:
    """Return a multiset of rows as text, floats to 12 significant digits."""
    found = (tuple(f"{v + 0.0:.12g}" if isinstance(v, float) else repr(v) for v in row) for row in frame.collect())
    return Counter(found)


def _create(env: Environment, plain: SparkSession, texts: dict[int, str]) -> list[int]:
    """Create the views of ``texts`` by seed; a refusal must be Spark's, or for want of an order."""
    made, refused = [], {}
    for seed, sql in texts.items():
        try:
            env.execute(f"CREATE MATERIALIZED VIEW v{seed} AS {sql}")
        except DefinitionError as error:
            refused[seed] = error.message
        else:
            made.append(seed)
    for seed, message in refused.items():
        assert "definite" in message or not _accepts(plain, texts[seed]), f"view {seed}: {message}"
    assert len(refused) <= REFUSED_MAX, f"too many views are refused to show anything: {refused}"
    return made


def _accepts(plain: SparkSession, sql: str) -> bool:
    try:
        plain.sql(sql)
    except PySparkException:
        return False
    return True


class Elsewhere:
    """The same views at a location of their own, made when the tables already hold rows."""

    def __init__(self, env: Environment, texts: dict[int, str], held: Rows) -> None:
        """``held``: the rows of each table."""
        self._env, self._held = env, dict.fromkeys(held, ())
        for table in TABLES:
            env.execute(f"CREATE TABLE {quote(table.name)} ({table.ddl})")
        self.go_to(held)
        for seed, sql in texts.items():
            env.execute(f"CREATE MATERIALIZED VIEW v{seed} AS {sql}")
        env.tick()

    def go_to(self, held: Rows) -> None:
        """Let the tables hold these rows from now on."""
        with self._env.transaction() as transaction:
            for name, rows in held.items():
                before = list(self._held[name])
                coming = [row for row in rows if not (row in before and (before.remove(row) is None))]
                if before:
                    transaction.delete(name, before)
                transaction.insert(name, coming)
        self._held = {name: tuple(rows) for name, rows in held.items()}
        self._env.tick()

    def differ(self, other: Environment, seeds: Iterable[int]) -> list[str]:
        """Say which views hold other rows or errors than those of another environment."""
        found = ((seed, _halves(self._env, f"v{seed}"), _halves(other, f"v{seed}")) for seed in seeds)
        return [
            f"view {seed}: {theirs} is kept, and {ours} made afresh" for seed, ours, theirs in found if ours != theirs
        ]


def _halves(env: Environment, name: str) -> tuple[Counter[str], Counter[str]]:
    """Return the rows and the errors of a collection as it is now."""

    async def ask(half: Half) -> Counter[str]:
        reader = await env._core.readers.of(name)
        rows = await updates(env._core, reader, await latest(env._core, [reader]), Hold(), half)
        counted: Counter[str] = Counter()
        for row in (await env._core.engine.collect(rows)).to_pylist():
            diff, _ = row.pop(DIFF), row.pop(TIME)
            counted[repr(sorted(row.items()))] += diff
        return Counter({row: count for row, count in counted.items() if count})

    return env._run(ask(Half.OK)), env._run(ask(Half.ERR))


class Ways:
    """Plain Spark, asked in three ways."""

    def __init__(self, spark: SparkSession) -> None:
        self._sessions = {n: _plain(spark, **{"spark.sql.shuffle.partitions": f"{n}"}) for n in PARTITIONS}
        self._chance = random.Random(7)
        self._analyst = SparkAnalyst(sibling(spark, {"spark.sql.ansi.enabled": "true"}))

    def hold(self, held: Rows) -> None:
        """Let the tables hold these rows, each time in another order."""
        for n, session in self._sessions.items():
            for table in TABLES:
                rows = [tuple(row.values()) for row in held[table.name]]
                self._chance.shuffle(rows)
                frame = session.createDataFrame(session.createDataFrame(rows, table.ddl).toArrow().combine_chunks())
                frame.repartition(n).createOrReplaceTempView(quote(table.name))

    def wrong(self, ours: Answer, sql: str) -> str:
        """Say how the answers to ``sql`` differ from ``ours``; nothing if each is the same, or only Spark's vary."""
        found = [_answer(partial(session.sql, sql), PySparkException) for session in self._sessions.values()]
        if all(each in (ours, None) for each in found):
            return ""
        catalog = {table.name: Schema(tuple(Column(*each) for each in table.columns)) for table in TABLES}
        query = parse(sql)
        assert query is not None, sql
        named = {each.name.lower() for each in relations(query)}
        means = meaning(sql, {name: own for name, own in catalog.items() if name.lower() in named}, self._analyst)
        assert means is not None, sql
        again = [_answer(partial(session.sql, means), PySparkException) for session in self._sessions.values()]
        return (
            "" if all(each in (ours, None) for each in again) else f"{ours}\nand in three ways {found}\n{again}\n{sql}"
        )


def follow(
    place: Place, first: int, seeds: list[int], *, failing: bool = False, asked_again: int = ASKED_AGAIN
) -> set[int]:
    """Create the views, let a history happen, and compare every view with plain Spark after each tick.

    ``asked_again``: of so many views one is asked in three ways at the last tick.
    Return the views that had errors at some tick.
    """
    plain, unpruned, history = _plain(place.spark), _plain(place.spark, **UNPRUNED), History(first, bad=failing)
    ways = Ways(place.spark)
    view = partial(random_view, failing=failing)
    # Every second batch prepares all plans of small windows, and the others none.
    asked_min = patch.object(plans, "ASKED_MIN", 1 if first // VIEWS % 2 else 1 << 30)
    there = replace(place, root=place.root / "elsewhere")
    with asked_min, place.open() as env, ExitStack() as opened:
        elsewhere: Elsewhere | None = None
        for table in TABLES:
            env.execute(f"CREATE TABLE {quote(table.name)} ({table.ddl})")
            plain.createDataFrame([], table.ddl).createOrReplaceTempView(quote(table.name))
        views = _create(env, plain, {seed: view(seed)[0] for seed in seeds})
        wrong, failed = [], set[int]()
        for tick in range(TICKS):
            with env.transaction() as transaction:
                for name, (coming, going) in history.step(last=tick == TICKS - 1).items():
                    if going:
                        transaction.delete(name, going)
                    transaction.insert(name, coming)
            env.tick()
            status = env.status()
            assert status["problems"] == {}, f"tick {tick} of the history {first}"
            for table in TABLES:
                rows = [tuple(row.values()) for row in history.held[table.name]]
                held = plain.createDataFrame(rows, table.ddl).toArrow().combine_chunks()
                for session in (plain, unpruned):
                    # As Arrow, since Spark hands a list to Python again at each scan; in one partition, so that nothing
                    # is shuffled.
                    session.createDataFrame(held).coalesce(1).createOrReplaceTempView(quote(table.name))
            for seed in views:
                ours = _answer(partial(env.query, f"SELECT * FROM v{seed}"), CollectionError)
                assert (ours is None) == (status["collections"][f"v{seed}"]["errors"]["rows"] > 0), f"view {seed}"
                failed |= set() if ours is not None else {seed}
                found = _wrong(ours, partial(view, seed), plain, unpruned)
                wrong += [f"view {seed}, tick {tick}: {found}"] if found else []
            if tick == TICKS - 1:
                ways.hold(history.held)
                for seed in [seed for seed in views if seed % asked_again == 0]:
                    ours = _answer(partial(env.query, f"SELECT * FROM v{seed}"), CollectionError)
                    found = "" if ours is None else ways.wrong(ours, view(seed)[0])
                    wrong += [f"view {seed}: {found}"] if found else []
            if failing and elsewhere is None and tick >= first // FAILING_STRIDE % (TICKS - 1):
                other = opened.enter_context(there.open())
                elsewhere = Elsewhere(other, {seed: view(seed)[0] for seed in views}, history.held)
            elif elsewhere is not None:
                elsewhere.go_to(history.held)
            wrong += [] if elsewhere is None else [f"tick {tick}, {each}" for each in elsewhere.differ(env, views)]
        assert not wrong, "\n\n".join(wrong)
        return failed


def _wrong(ours: Answer, view: Callable[..., Any], plain: SparkSession, unpruned: SparkSession) -> str:
    """Say what is wrong with the answer of ``view`` (None: it has errors), or nothing; see the module's docstring."""
    sql, _ = view()
    theirs = _answer(partial(plain.sql, sql), PySparkException)
    if ours == theirs:
        return ""
    if theirs is None:
        found = [_answer(partial(plain.sql, view(n)[0]), PySparkException) for n in STANDINS]
        return "" if all(each == ours for each in found) else f"it has no error: {ours}, {found}\n{sql}"
    if ours is None:
        strict = _answer(partial(unpruned.sql, sql), PySparkException)
        return "" if strict is None else f"it has errors, and the query an answer: {theirs}\n{sql}"
    return f"{ours}\nand not {theirs}\n{sql}"


def _seeds(possible: range) -> list[int]:
    chosen = os.environ.get("STRANDLINE_VIEWS")
    return [int(seed) for seed in chosen.split(",")] if chosen else list(possible)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("first", QUICK)
def test_random_views_are_what_plain_spark_says_after_every_tick(first: int, place: Place) -> None:
    """Else some combination of plain SQL gives a wrong answer in silence, or stops every view."""
    follow(place, first, _seeds(range(first, first + VIEWS)))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("first", FAILING_QUICK)
def test_random_views_over_rows_that_fail_are_right_or_have_errors_and_heal(first: int, place: Place) -> None:
    """Else a row that some expression has no value for hides, invents or stops answers, or outlives itself."""
    failed = follow(place, first, _seeds(range(first + 1, first + FAILING_STRIDE, 2)), failing=True)
    assert failed, "no view fails, so the test shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("first", LONG)
def test_very_many_random_views_are_what_plain_spark_says_after_every_tick(first: int, place: Place) -> None:
    """The same over three thousand views, each asked in three ways."""
    follow(place, first, _seeds(range(first, first + VIEWS)), asked_again=1)


@pytest.mark.slow
@pytest.mark.parametrize("first", FAILING_LONG)
def test_many_random_views_over_rows_that_fail_are_right_or_have_errors(first: int, place: Place) -> None:
    """The same over five hundred views that may fail."""
    follow(place, first, _seeds(range(first + 1, first + FAILING_STRIDE, 2)), failing=True)
