"""Prepared plans give the rows of the day and no others; what may keep the rows of its first run is refused."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.algebra.nodes import (
    Accumulate,
    Accumulator,
    Aggregate,
    Equal,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Opaque,
    Project,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
    frames,
)
from strandline.algebra.scalar import Scalar, column, scalar
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.frames.rows import later
from strandline.engine.parts.staging import small
from strandline.engine.prepared import plans
from strandline.engine.prepared.plan import Leaf, Leaves
from strandline.engine.prepared.plans import Asked, Plans
from strandline.engine.sql.rendering import render
from strandline.frontier import TIME_MAX
from strandline.persist.handles.contents import StageRequest

pytestmark = pytest.mark.spark

T = Get("t", (("k", "k"), ("s", "s"), ("x", "x")))
U = Get("u", (("uk", "k"), ("name", "s")))
STORED = Get("p", (("k", "k"), ("n", "n"), ("total", "total")))
ROW = Schema((Column("k", "bigint"), Column("s", "string"), Column("x", "bigint")))
SUMS = Schema((Column("k", "bigint"), Column("n", "bigint"), Column("total", "bigint")))
ARROW = {"bigint": pa.int64(), "string": pa.string()}
K = ("k", Scalar(column("k")))

P = Get("p", (("pk", "k"), ("n", "n")))
CHAIN = Join(
    (T, U, P),
    (Equal(Scalar(column("k")), Scalar(column("uk"))), Equal(Scalar(column("uk")), Scalar(column("pk")))),
)
T_KEYS = Project(T, (K,))
KEYS = UnionAll((T_KEYS, Project(U, (("k", Scalar(column("uk"))),))))
WINDOW = "SELECT k, s, row_number() OVER (PARTITION BY k ORDER BY x DESC, s) AS x FROM r"


def _of_both(word: str) -> Node:
    both = (Restrict(Get("t", (("k", "k"), ("s", "s"))), ("k",), KEYS), Restrict(U, ("uk",), KEYS))
    sql = f"SELECT k, s FROM a {word} SELECT uk, name FROM b"
    return Replay(both, ("a", "b"), sql, ("k", "s"), both[0], (0,))


SHAPES: Mapping[str, tuple[Node, Schema]] = {
    "projection": (Project(T, (K, ("x", scalar("`x` * 2 + 1")))), Schema((ROW.columns[0], ROW.columns[2]))),
    "filter": (Filter(T, scalar("`x` > 3 OR `s` IS NULL")), ROW),
    "union": (UnionAll((T, Filter(T, scalar("`k` > 1")))), ROW),
    "join": (
        Join((T, U), (Equal(Scalar(column("k")), Scalar(column("uk"))),), small=0),
        Schema((*ROW.columns, Column("uk", "bigint"), Column("name", "string"))),
    ),
    "null-safe join": (
        Join((T, U), (Equal(Scalar(column("k")), Scalar(column("uk")), nulls=True),), small=0),
        Schema((*ROW.columns, Column("uk", "bigint"), Column("name", "string"))),
    ),
    "cross join": (
        Join((T, U), small=0),
        Schema((*ROW.columns, Column("uk", "bigint"), Column("name", "string"))),
    ),
    "joins of joins": (
        replace(CHAIN, small=0),
        Schema(
            (*ROW.columns, Column("uk", "bigint"), Column("name", "string"), *SUMS.columns[1:2], Column("pk", "bigint"))
        ),
    ),
    "sums": (
        Accumulate(
            T,
            STORED,
            (K,),
            (Accumulator("n", scalar("1"), "bigint"), Accumulator("total", scalar("coalesce(`x`, 0)"), "bigint")),
            "n",
            (0,),
        ),
        SUMS,
    ),
    "groups": (
        Regroup(
            T,
            T,
            STORED,
            (K,),
            (
                Aggregate("n", "max", Scalar(column("x")), False, "bigint", "bigint"),
                Aggregate("total", "count", Scalar(column("s")), True, "bigint", "string"),
            ),
            (0,),
        ),
        SUMS,
    ),
    "groups of joins of joins": (
        Regroup(
            CHAIN,
            CHAIN,
            Get("t", (("k", "k"), ("n", "x"))),
            (K,),
            (Aggregate("n", "max", Scalar(column("n")), False, "bigint", "bigint"),),
            (0,),
        ),
        Schema(SUMS.columns[:2]),
    ),
    "the greatest of all": (
        Regroup(
            T,
            T,
            Get("p", (("n", "n"),)),
            (),
            (Aggregate("n", "max", Scalar(column("x")), False, "bigint", "bigint"),),
            (0,),
        ),
        Schema(SUMS.columns[1:2]),
    ),
    "window": (Replay((T,), ("r",), WINDOW, ("k", "s", "x"), T, (0,)), ROW),
    "first rows, touched or not": (
        Replay(
            (UnionAll((T, Restrict(Negate(T), (), Project(Restrict(U, ("uk",), T_KEYS), ())))),),
            ("r",),
            "SELECT k, s, x FROM r ORDER BY x, k, s LIMIT 2",
            ("k", "s", "x"),
            T,
            (0,),
            partial=True,
        ),
        ROW,
    ),
    "first rows, and others from two places": (
        Replay(
            (UnionAll((T, Restrict(UnionAll((T, Negate(T))), (), Project(Restrict(T, ("k",), KEYS), ())))),),
            ("r",),
            "SELECT k, s, x FROM r ORDER BY x, k, s LIMIT 2",
            ("k", "s", "x"),
            T,
            (0,),
            partial=True,
        ),
        ROW,
    ),
    "window of touched keys": (
        Replay((Restrict(T, ("k",), KEYS),), ("r",), WINDOW, ("k", "s", "x"), Restrict(T, ("k",), KEYS), (0,)),
        ROW,
    ),
    "what is in both, of touched keys": (_of_both("INTERSECT"), Schema((ROW.columns[0], ROW.columns[1]))),
    "what is in one, of touched keys": (_of_both("EXCEPT"), Schema((ROW.columns[0], ROW.columns[1]))),
    "other aggregates of touched keys": (
        Replay(
            (Restrict(T, ("k",), KEYS),),
            ("r",),
            "SELECT k, count(DISTINCT s) AS n, CAST(percentile(x, 0.5) * 10 AS BIGINT) AS total FROM r GROUP BY k",
            ("k", "n", "total"),
            Restrict(STORED, ("k",), KEYS),
            (0,),
        ),
        SUMS,
    ),
}


INPUTS = {"t": ROW, "u": Schema(ROW.columns[:2]), "p": SUMS}
"""What the frames of the shapes hold."""


def updates(rng: random.Random, schema: Schema, *, diff: int = 2, times: Sequence[int] = (0,)) -> pa.Table:
    """Return a few updates, with NULLs, each there up to ``diff`` times; ``times`` count from 7."""
    count = rng.randrange(8)

    def value(type_: str) -> object:
        return None if rng.random() < 0.2 else rng.randrange(4) if type_ == "bigint" else f"s{rng.randrange(3)}"

    columns = {c.name: pa.array([value(c.type) for _ in range(count)], ARROW[c.type]) for c in schema}
    diffs = [rng.randrange(1, diff + 1) for _ in range(count)]
    return pa.table(
        columns
        | {TIME: pa.array([7 + rng.choice(times) for _ in range(count)], pa.int64()), DIFF: pa.array(diffs, pa.int64())}
    )


def asked(rng: random.Random, shape: str, *, times: Sequence[int] = (0,)) -> Asked:
    """Return a window of ``shape`` over random rows; of groups that are stored there is one row each."""
    node, schema = SHAPES[shape]
    if isinstance(node, Accumulate | Regroup | Replay):
        node = replace(node, times=tuple(times))
    tables = {name: updates(rng, INPUTS[name], times=times) for name in ("t", "u")}
    stored = updates(rng, SUMS, diff=1, times=(-3,))
    keys = [stored["k"].to_pylist().index(key) for key in dict.fromkeys(stored["k"].to_pylist())]
    tables["p"] = stored.take(pa.array(keys, pa.int64()))
    return Asked(node, {name: tables[name] for name in sorted(frames(node))}, 7, request(shape, schema))


def request(shard: str, schema: Schema) -> StageRequest:
    """Return the wish to stage a small result."""
    return StageRequest(shard, schema, 0, TIME_MAX, "", small=True)


def afresh(spark: SparkSession, given: Asked) -> list[tuple[object, ...]]:
    """Return what a fresh plan gives."""
    views = {name: f"fresh_{name}" for name in given.tables}
    for name, view in views.items():
        table = later(given.tables[name], -given.origin)
        spark.createDataFrame(table, schema=from_arrow_schema(table.schema)).createOrReplaceTempView(view)
    found = small(spark.sql(render(given.node, views)), given.request).toArrow()
    for view in views.values():
        spark.catalog.dropTempView(view)
    return in_order(later(found, given.origin))


def in_order(table: pa.Table) -> list[tuple[object, ...]]:
    """Return the rows of a table in an order."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.fixture
def prepared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Plans that are prepared when they are first asked for."""
    monkeypatch.setattr(plans, "ASKED_MIN", 1)
    return Plans(spark)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_prepared_plan_gives_what_a_fresh_one_gives_whatever_it_gave_before(
    shape: str, prepared: Plans, spark: SparkSession
) -> None:
    """Damage: a node keeps rows of its first run; an empty leaf keeps the rows of the run before."""
    rng = random.Random(shape)
    for _ in range(8):
        given = asked(rng, shape)
        (found,) = prepared.run([given])
        assert found is not None, prepared.reasons
        assert in_order(found) == afresh(spark, given)
    assert (prepared.counters.made, prepared.counters.shares, prepared.counters.failed) == (1, 8, 0)


def test_many_rows_leave_the_session_when_their_plan_has_run(
    prepared: Plans, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: each of some hundred plans holds the rows of its largest window in the JVM, until that has no room."""
    monkeypatch.setattr(plans, "KEPT_BYTES_MAX", 0)
    cleared: list[Leaf] = []
    clear = Leaves.clear
    monkeypatch.setattr(Leaves, "clear", lambda self, leaves: clear(self, [cleared.append(x) or x for x in leaves]))
    rng = random.Random(4)
    for _ in range(3):
        given = asked(rng, "join")
        cleared.clear()
        (found,) = prepared.run([given])
        assert found is not None
        assert in_order(found) == afresh(spark, given)
        assert len(set(map(id, cleared))) == len(given.tables)


def test_wide_rows_are_not_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a window of a few thousand documents takes all the room that the JVM has."""
    monkeypatch.setattr(plans, "BYTES_MAX", 1_000)
    narrow, wide = pa.table({"s": ["x"]}), pa.table({"s": ["x" * 600]})
    assert plans.are_few([narrow, wide])
    assert not plans.are_few([wide, wide])
    assert not plans.are_few([pa.table({"s": pa.nulls(plans.ROWS_MAX + 1)})])


def test_all_plans_of_a_wave_run_in_two_threads_and_each_keeps_its_rows(prepared: Plans, spark: SparkSession) -> None:
    """Damage: the results of a thread are handed out in another order than the plans."""
    rng = random.Random(1)
    for _ in range(4):
        wave = [asked(rng, shape) for shape in SHAPES]
        before = prepared.counters.shares
        found = prepared.run(wave)
        assert prepared.counters.shares == before + plans.THREADS
        for given, table in zip(wave, found, strict=True):
            assert table is not None
            assert in_order(table) == afresh(spark, given)


def test_a_plan_that_a_run_needs_twice_is_used_once(prepared: Plans, spark: SparkSession) -> None:
    """Damage: two windows of one plan share its leaves, and both get the rows of the second."""
    rng = random.Random(2)
    one, two = asked(rng, "join"), asked(rng, "join")
    first, second = prepared.run([one, two])
    assert first is not None
    assert in_order(first) == afresh(spark, one)
    assert second is None


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT k, s, x FROM r WHERE k IN (SELECT max(k) FROM r)", "a subquery, an exchange or a broadcast"),
        ("SELECT k, s, x FROM r WHERE x = (SELECT max(x) FROM r)", "a scalar subquery"),
        ("SELECT a.k, b.s, b.x FROM r a LEFT JOIN r b ON a.x < b.x", "a broadcast"),
    ],
)
def test_what_may_keep_rows_is_refused_once_and_planned_afresh(sql: str, names: str, prepared: Plans) -> None:
    """Damage: stale rows, without an error."""
    node = Opaque((T,), ("r",), sql, ("k", "s", "x"), names)
    rng = random.Random(3)
    for _ in range(3):
        given = Asked(node, {"t": updates(rng, ROW)}, 7, request("opaque", ROW))
        assert prepared.run([given]) == [None]
    assert prepared.counters.refused == 1
    assert "Spark plans it with" in str(prepared.reasons)


def test_a_plan_is_prepared_for_its_second_use_unless_it_is_sure_to_have_one(spark: SparkSession) -> None:
    """Damage: what is asked for once is prepared for nothing; a step's plan is planned twice."""
    made, rng = Plans(spark), random.Random(4)
    assert made.run([asked(rng, "filter")]) == [None]
    assert made.counters.made == 0
    for given in (asked(rng, "filter"), replace(asked(rng, "sums"), again=True)):
        (found,) = made.run([given])
        assert found is not None
        assert in_order(found) == afresh(spark, given)
    assert made.counters.made == 2


def test_the_least_recently_used_plan_is_forgotten(prepared: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: plans fill the memory, or one that is in use is prepared at each tick."""
    monkeypatch.setattr(plans, "PLANS_MAX", 2)
    rng = random.Random(6)
    for shape in ("filter", "sums", "filter", "join", "filter"):
        assert prepared.run([asked(rng, shape)])[0] is not None
    assert prepared.counters.made == 3
    prepared.run([asked(rng, "sums")])
    assert prepared.counters.made == 4


@pytest.mark.drawn(2)
@pytest.mark.parametrize("shape", ["sums", "groups", "window", "window of touched keys", "join"])
def test_one_plan_serves_all_windows_of_as_many_times(shape: str, prepared: Plans, spark: SparkSession) -> None:
    """Damage: a plan is made for each gap between times; updates get the rank of a time, or another time."""
    rng = random.Random(shape)
    for _ in range(6):
        gap = rng.randrange(1, 1_000)
        given = asked(rng, shape, times=(0, gap, gap + 1))
        (found,) = prepared.run([given])
        assert found is not None, prepared.reasons
        assert in_order(found) == afresh(spark, given)
    assert prepared.counters.made == 1


def test_a_row_that_cannot_be_evaluated_leaves_the_error_to_the_fresh_plan(
    prepared: Plans, spark: SparkSession
) -> None:
    """Damage: one bad row stops all plans of the job, also for good, or its error has no name."""
    bad = Project(T, (K, ("s", Scalar(column("s"))), ("x", scalar("CAST(1 / `x` AS BIGINT)"))))
    zero = pa.table({"k": [1], "s": ["a"], "x": [0], TIME: [7], DIFF: [1]})
    given = Asked(bad, {"t": zero}, 7, request("bad", ROW))
    other = asked(random.Random(5), "filter")
    none, found = prepared.run([given, other])
    assert none is None
    assert found is not None
    assert in_order(found) == afresh(spark, other)
    assert prepared.counters.failed == 1
    good = Asked(bad, {"t": zero.set_column(2, "x", pa.array([1], pa.int64()))}, 7, request("bad", ROW))
    assert prepared.run([good])[0] is not None


@pytest.mark.parametrize(
    "bug",
    ["a leaf is not exchanged", "an empty leaf keeps its rows", "results are mixed up", "a join keeps the partitions"],
)
def test_the_comparison_with_fresh_plans_sees_what_it_is_for(
    bug: str, prepared: Plans, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a test that cannot fail."""
    exchange, run = Leaves.exchange, Leaves.run
    match bug:
        case "a leaf is not exchanged":
            seen: set[int] = set()

            def once(self: Leaves, rows: Sequence[tuple[Leaf, pa.Table]]) -> None:
                exchange(self, [(leaf, table) for leaf, table in rows if id(leaf) not in seen])
                seen.update(id(leaf) for leaf, table in rows if table.num_rows)

            monkeypatch.setattr(Leaves, "exchange", once)
        case "an empty leaf keeps its rows":
            monkeypatch.setattr(
                Leaves, "exchange", lambda self, rows: exchange(self, [each for each in rows if each[1].num_rows])
            )
        case "a join keeps the partitions":  # of its first run, as it does in a thread and not in a job
            monkeypatch.setattr(Leaves, "written", lambda self, partition: partition)
        case _:
            monkeypatch.setattr(Leaves, "run", lambda self, rdds: run(self, list(reversed(rdds))))
    rng, wrong = random.Random(13), 0
    for _ in range(12):
        wave = [asked(rng, "filter"), asked(rng, "union"), asked(rng, "join")]
        for given, table in zip(wave, prepared.run(wave), strict=True):
            wrong += table is None or in_order(table) != afresh(spark, given)
    assert wrong
