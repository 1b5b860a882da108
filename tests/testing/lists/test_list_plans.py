"""Plans mean over lists what they mean to Spark, and what the design says of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from decimal import Decimal
from typing import Any, Final

import pytest

from strandline.algebra.nodes import Opaque, frames
from strandline.algebra.scalar import scalar
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.compute.plan.view import plan_view
from strandline.compute.rules.rule import Phase, Window, source
from strandline.compute.stage import Stage, delta_plan, full_plan, split
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.errors import CollectionError, InvalidUsage
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.lists.list_expressions import evaluator_of

CATALOG: Final = {
    "orders": Schema((Column("k", "int"), Column("v", "int"), Column("p", "decimal(6,2)"))),
    "names": Schema((Column("k", "int"), Column("name", "string"))),
}
TOP: Final = "SELECT k, v FROM orders ORDER BY v DESC NULLS LAST, k LIMIT 2"
VIEWS: Final = {
    "linear": "SELECT k, v + 1 AS w, p AS q FROM orders WHERE v > 1 OR k IS NULL",
    "cases": "SELECT k, CASE WHEN v IN (1, 2) THEN 'few' WHEN v BETWEEN 3 AND 4 THEN 'some' END AS c FROM orders",
    "joined": "SELECT o.k, n.name, o.v FROM orders o JOIN names n ON o.k = n.k AND o.v < 4",
    "thrice": "SELECT a.k, b.name AS x, c.v FROM orders a JOIN names b ON a.k = b.k JOIN orders c ON c.k = a.k",
    "union": "SELECT k FROM orders UNION ALL SELECT k FROM names",
    "sums": "SELECT k, count(*) AS n, count(v) AS m, sum(v) AS s, avg(v) AS a FROM orders GROUP BY k",
    "total": "SELECT count(*) AS n, sum(v) AS s FROM orders",
    "extremes": "SELECT k, min(v) AS lo, max(v) AS hi, max(p) AS top FROM orders GROUP BY k",
    "extreme": "SELECT max(v) AS hi, min(k) AS lo FROM orders",
    "distinct": "SELECT DISTINCT k FROM orders",
    "kinds": "SELECT k, count(DISTINCT v) AS n FROM orders GROUP BY k",
    "above": "SELECT s.k, s.n FROM (SELECT k, count(*) AS n FROM orders GROUP BY k) s WHERE s.n > 1",
    "top": TOP,
    # keys of several columns, in another order than the columns stand in, and none of them first
    "pair": "SELECT p, count(*) AS n, v, max(k) AS hi, k + 1 AS l FROM orders GROUP BY v, p, k + 1",
    "matched": "SELECT o.p, n.name, o.k FROM orders o JOIN names n ON o.v = n.k AND n.k = o.k",
    "kinds of pairs": "SELECT v, count(DISTINCT p) AS n, k FROM orders GROUP BY k, v",
    # an extreme by a computed key, over rows of both tables
    "either": "SELECT max(u.v) AS hi, u.g, min(u.v) AS lo FROM "
    "(SELECT v, k + 1 AS g FROM orders UNION ALL SELECT k AS v, k AS g FROM names) u GROUP BY u.g",
    # two aggregates, and a bound, that change at different times
    "both": "SELECT s.k, s.hi, t.n FROM (SELECT k, max(v) AS hi FROM orders GROUP BY k) s "
    "JOIN (SELECT k, count(*) AS n FROM names GROUP BY k) t ON s.k = t.k",
    "bounded": "SELECT k, v FROM orders WHERE v > (SELECT max(k) FROM names)",
}
TIMES: Final = (1, 2, 3, 4, 5, 6)
QUIET_SHARE: Final = 0.2
NETTED_SHARE: Final = 0.5


def top(relations):
    """Answer `TOP`."""
    (rows,) = relations.values()
    values = [(row["k"] if "k" in row else row["k_2"], row.get("v", row.get("v_2"))) for row in rows]
    least = -(2**40)
    return sorted(values, key=lambda r: (-(r[1] if r[1] is not None else least), least if r[0] is None else r[0]))[:2]


class Histories:
    """Random insertions and deletions of both tables, as update rows.

    A row may come several times and go in part, by one update or by several that are not netted; a table may be quiet
    while the other changes.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {"orders": [], "names": []}
        held: dict[str, list[dict[str, Any]]] = {"orders": [], "names": []}
        for time in TIMES:
            for name, here in held.items():
                if chance.random() < QUIET_SHARE:
                    continue
                gone = [here.pop(chance.randrange(len(here))) for _ in range(min(len(here), chance.randrange(3)))]
                came = [self._row(name, chance) for _ in range(chance.randrange(4))]
                came += came[:1] * chance.randrange(3)
                here.extend(came)
                changes = [(row, -1) for row in gone] + [(row, 1) for row in came]
                self.rows[name] += self._written(changes, time, chance)

    @staticmethod
    def _written(changes: list[tuple[dict[str, Any], int]], time: int, chance: random.Random) -> list[dict[str, Any]]:
        """Write changes as updates: one by one, or as one for each row; perhaps with one that is taken back at once."""
        if chance.random() < NETTED_SHARE:
            sums: Counter[tuple[tuple[str, Any], ...]] = Counter()
            for row, diff in changes:
                sums[tuple(row.items())] += diff
            changes = [(dict(items), diff) for items, diff in sums.items() if diff]
        elif changes:
            row, _ = chance.choice(changes)
            changes = [*changes, (row, 2), (row, -2)]
        return [row | {TIME: time, DIFF: diff} for row, diff in changes]

    @staticmethod
    def _row(name: str, chance: random.Random) -> dict[str, Any]:
        k = chance.choice([1, 2, None])
        if name == "names":
            return {"k": k, "name": chance.choice(["x", "y", None])}
        price = chance.choice([Decimal("1.25"), Decimal("-0.50"), None])
        return {"k": k, "v": chance.choice([1, 2, 3, 4, None]), "p": price}

    def at(self, name: str, time: int) -> list[dict[str, Any]]:
        """Return what had happened to a table by ``time``, all at 0: its contents as updates."""
        return [row | {TIME: 0} for row in self.rows[name] if row[TIME] <= time]


def consolidated(rows, time: int | None = None) -> dict[tuple[Any, ...], int]:
    """Add updates up, up to ``time`` and whenever they were, or by their times."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if time is None or row[TIME] <= time:
            values = tuple(value for name, value in row.items() if name not in (TIME, DIFF))
            sums[values if time is not None else (row[TIME], *values)] += row[DIFF]
    return {values: count for values, count in sums.items() if count}


def stages_of(sql: str) -> tuple[Stage, ...]:
    """Return the stages of a view."""
    return split(plan_view(sql, CATALOG, ListAnalyst()), "view")


def schema_of(stages: tuple[Stage, ...], name: str) -> Schema:
    """Return what a frame's collection stores."""
    return CATALOG[name] if name in CATALOG else next(s.schema for s in stages if s.name == name)


def stepped(
    engine: ListEngine, stages: tuple[Stage, ...], history: Histories, cuts: tuple[int, ...]
) -> dict[str, list]:
    """Maintain all stages, a step for each of ``cuts``; return the updates of every collection."""
    stored: dict[str, list[dict[str, Any]]] = {**history.rows, **{stage.name: [] for stage in stages}}
    for lower, upper in zip((0, *cuts), cuts, strict=False):
        for stage in stages:
            inside = {n: [r for r in stored[n] if lower <= r[TIME] < upper] for n in stage.inputs}
            times = tuple(sorted({row[TIME] for rows in inside.values() for row in rows}))
            first = lower == 0
            window = Window(frozenset(n for n, rows in inside.items() if rows), (0,) if first else times, first=first)
            plan = delta_plan(stage, window)
            if plan is None:
                continue
            read = {}
            for frame in frames(plan):
                name, phase = source(frame)
                begin = lower if phase is Phase.DELTA else 0
                end = lower if phase is Phase.OLD else upper
                early = 0 if first else min(times)
                rows = [r | {TIME: 0 if first else max(r[TIME], early)} for r in stored[name] if begin <= r[TIME] < end]
                read[frame] = updates(schema_of(stages, name), rows)
            found = listed(asyncio.run(engine.evaluate(plan, read))).rows
            stored[stage.name] += [row | {TIME: upper - 1} for row in found] if first else found
    return stored


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("cuts", [(2, 3, 4, 5, 6, 7), (3, 7), (2, 6, 7)], ids=str)
def test_a_view_kept_step_by_step_is_the_view_computed_at_once(view: str, cuts: tuple[int, ...]) -> None:
    """Damage: the simulator's engine is wrong about a rule, and every world blames the product, or nothing does."""
    stages = stages_of(VIEWS[view])
    engine = ListEngine(MemoryBlob(), {TOP: top, **{s.plan.sql: top for s in stages if isinstance(s.plan, Opaque)}})
    for seed in range(20):
        history = Histories(seed)
        stored = stepped(engine, stages, history, cuts)
        for time in range(cuts[0] - 1, cuts[-1]):
            contents = {name: history.at(name, time) for name in CATALOG}
            for stage in stages:
                read = {n: updates(schema_of(stages, n), contents[n]) for n in frames(full_plan(stage))}
                contents[stage.name] = list(listed(asyncio.run(engine.evaluate(full_plan(stage), read))).rows)
            assert consolidated(stored["view"], time) == consolidated(contents["view"], time), (seed, time)


@pytest.mark.spark
@pytest.mark.parametrize("view", [view for view in VIEWS if view != "top"])
def test_a_plan_means_over_lists_what_it_means_to_spark(view: str, spark, tmp_path) -> None:
    """Damage: what simulation proves of a view says nothing of the view that runs."""
    real, double = SparkEngine(spark, PartStore(tmp_path)), ListEngine(MemoryBlob())
    stages = stages_of(VIEWS[view])
    assert (
        plan_view(VIEWS[view], CATALOG, SparkAnalyst(spark)).schema
        == plan_view(VIEWS[view], CATALOG, ListAnalyst()).schema
    )
    history = Histories(7)
    stored = stepped(double, stages, history, (3, 7))
    for stage in stages:
        inside = {n: [r for r in stored[n] if 3 <= r[TIME] < 7] for n in stage.inputs}
        times = tuple(sorted({row[TIME] for rows in inside.values() for row in rows}))
        plan = delta_plan(stage, Window(frozenset(inside), times))
        assert plan is not None

        async def both(plan=plan, times=times) -> tuple[Any, Any]:
            found = []
            for engine in (double, real):
                read = {}
                for frame in frames(plan):
                    name, phase = source(frame)
                    begin, end = (3 if phase is Phase.DELTA else 0), (3 if phase is Phase.OLD else 7)
                    rows = [r | {TIME: max(r[TIME], times[0])} for r in stored[name] if begin <= r[TIME] < end]
                    schema = schema_of(stages, name)
                    given = updates(schema, rows)
                    if engine is real:
                        table = await double.collect(given)
                        given = real.from_arrow(table, schema)
                    read[frame] = given
                found.append((await engine.collect(await engine.evaluate(plan, read))).to_pylist())
            return found[0], found[1]

        ours, sparks = asyncio.run(both())
        assert consolidated(ours) == consolidated(sparks), stage.name
    real.close()


@pytest.mark.parametrize(
    ("text", "row", "wanted"),
    [
        ("`a` AND `b`", {"a": None, "b": False}, False),
        ("`a` AND `b`", {"a": None, "b": True}, None),
        ("`a` OR `b`", {"a": None, "b": True}, True),
        ("NOT `a`", {"a": None}, None),
        ("`a` = `b`", {"a": None, "b": None}, None),
        ("`a` <=> `b`", {"a": None, "b": None}, True),
        ("`a` IS NULL", {"a": None}, True),
        ("`a` IN (1, NULL)", {"a": 2}, None),
        ("`a` IN (1, NULL)", {"a": 1}, True),
        ("7 DIV -2", {}, -3),
        ("-7 % 3", {}, -1),
        ("7 / 2", {}, 3.5),
        ("COALESCE(`a`, `b`, 3)", {"a": None, "b": None}, 3),
        ("CASE `a` WHEN 1 THEN 'x' ELSE 'y' END", {"a": 1}, "x"),
        ("CAST('1.255' AS DECIMAL(4, 2))", {}, Decimal("1.26")),
    ],
)
def test_an_expression_has_the_value_that_spark_gives_it(text: str, row: dict[str, Any], wanted: object) -> None:
    """Damage: simulated views mean something else than those that run."""
    assert evaluator_of(scalar(text))(row) == wanted


@pytest.mark.parametrize(
    "text", ["1 / `a`", "1 DIV `a`", "1 % `a`", "9223372036854775807 + 1 + `a`", "CAST('x' AS int)"]
)
def test_an_expression_without_a_value_is_an_error(text: str) -> None:
    """Damage: a failing row becomes some value in the simulation, and errors are never simulated."""
    with pytest.raises(CollectionError, match="cannot be evaluated"):
        evaluator_of(scalar(text))({"a": 0})


def test_what_is_not_known_is_refused() -> None:
    """Damage: an expression is evaluated to a guess."""
    with pytest.raises(InvalidUsage, match="knows no"):
        evaluator_of(scalar("upper(`a`)"))
