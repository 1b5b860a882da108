"""A laboratory for maintenance rules: random histories, maintenance step by step, Spark's own answer at every time."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

import kinds
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import to_arrow_schema

from strandline.algebra.nodes import Node, frames
from strandline.algebra.schema import Column, Schema, quote
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.compute.rules.rule import Phase, Window, source
from strandline.compute.stage import Stage, delta_plan, full_plan, split
from strandline.engine.prepared.plan import CannotPrepareError, Leaf, Leaves, compiled
from strandline.engine.prepared.plans import CONF
from strandline.engine.session.start import sibling
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.engine.sql.rendering import render

Row = tuple[Any, ...]
Updates = dict[tuple[Row, int], int]
"""(row, time) → diff."""

NAN: Final = float("nan")
"""The one NaN: rows that hold it are equal, because it is the same object."""

TIMES: Final = (1, 2, 3, 4, 5, 6)


def schema(**columns: str) -> Schema:
    """Return a schema by keyword."""
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()))


CATALOG: Final = {
    "sales": schema(
        shop="string", product="string", qty="int", price="decimal(8,2)", weight="double", units="bigint", day="date"
    ),
    "shops": schema(shop="string", city="string", size="int"),
    "products": schema(product="string", kind="string", cost="decimal(10,3)"),
}


def normal(row: Iterable[Any]) -> Row:
    """Return ``row`` as it would be stored: one NaN, no negative zero."""
    return tuple((NAN if math.isnan(v) else v + 0.0) if isinstance(v, float) else v for v in row)


def _random_row(name: str, chance: random.Random) -> Row:
    shop, product = chance.choice(["a", "b", "c", None]), chance.choice(["p", "q", "r", None])
    match name:
        case "sales":
            weight = chance.choice([0.1, 0.2, 0.3, 1e16, -1e16, -0.0, 7.0, None, 0.7])
            price = chance.choice([Decimal("0.05"), Decimal("999999.99"), Decimal("1.10"), Decimal("-3.33"), None])
            units = chance.choice([1, 2**62, 7, None, -5])
            return normal((shop, product, chance.choice([1, 2, 3, None]), price, weight, units, date(2024, 1, 1)))
        case "shops":
            return (shop, chance.choice(["x", "y", None]), chance.choice([1, 2, None]))
        case _:
            return (product, chance.choice(["k", "l"]), chance.choice([Decimal("1.005"), Decimal("2.5"), None]))


def _random_history(seed: int) -> dict[str, Updates]:
    """Return random insertions and deletions of the three tables.

    Rows repeat; products do not change at time 4; all sales go at time 5 and some come back at 6.
    """
    chance = random.Random(seed)
    history: dict[str, Updates] = {}
    for name in CATALOG:
        held: Counter[Row] = Counter()
        updates: Counter[tuple[Row, int]] = Counter()
        for time in TIMES:
            if name == "products" and time == 4:
                continue
            gone = list(held.elements())
            if not (name == "sales" and time == 5):
                gone = chance.sample(gone, min(len(gone), chance.randint(0, 3)))
                for _ in range(chance.randint(1, 6)):
                    row = _random_row(name, chance)
                    count = chance.choice([1, 1, 2])
                    held[row] += count
                    updates[row, time] += count
            for row in gone:
                held[row] -= 1
                updates[row, time] -= 1
        history[name] = {key: diff for key, diff in updates.items() if diff}
    return history


def contents(updates: Updates, time: int) -> Counter[Row]:
    """Return the multiset that ``updates`` sum up to at ``time``; assert that no count is negative."""
    held: Counter[Row] = Counter()
    for (row, at), diff in updates.items():
        if at <= time:
            held[row] += diff
    assert all(count >= 0 for count in held.values()), f"negative counts at {time}: {held}"
    return Counter({row: count for row, count in held.items() if count})


@dataclass
class Laboratory:
    """Maintains views over histories, step by step, on Spark."""

    leaves: Leaves
    analyst: SparkAnalyst
    catalog: Mapping[str, Schema] = field(default_factory=lambda: CATALOG)
    times: tuple[int, ...] = TIMES
    _plans: dict[str, PlannedView] = field(default_factory=dict)
    _forgotten: set[str] = field(default_factory=set)
    _leaves_of: dict[str, list[tuple[str, Leaf]]] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        """The session that plans, and holds the views."""
        return self.leaves.session

    @staticmethod
    def history(seed: int) -> dict[str, Updates]:
        """Return random histories of the catalog's tables."""
        return _random_history(seed)

    @staticmethod
    def rounded(held: Counter[Row]) -> Counter[tuple[str, ...]]:
        """Return a multiset with its floats to 12 significant digits, all else exactly, as text."""
        result: Counter[tuple[str, ...]] = Counter()
        for row, count in held.items():
            result[tuple(f"{v:.12g}" if isinstance(v, float) else repr(v) for v in row)] += count
        return result

    @staticmethod
    def bits(held: Counter[Row]) -> Counter[tuple[str, ...]]:
        """Return a multiset with its floats bit for bit, as text."""
        return Counter({tuple(v.hex() if isinstance(v, float) else repr(v) for v in row): n for row, n in held.items()})

    def plan(self, sql: str) -> PlannedView:
        """Plan a view over the catalog."""
        if sql not in self._plans:
            planned = self._plans[sql] = plan_view(sql, self.catalog, self.analyst)
            if sql not in self._forgotten:
                kinds.check(sql, split(planned, "view"))
        return self._plans[sql]

    def forget(self, sql: str) -> None:
        """Plan that view anew when it is asked for again, perhaps by a planner with a mistake."""
        self._plans.pop(sql, None)
        self._forgotten.add(sql)

    def run(self, plan: Node, read: Mapping[str, tuple[Schema, Updates]], *, small: bool = False) -> Updates:
        """Run a plan over frames of updates, written as for a small window or not, and consolidate what it gives."""
        held = []
        for name in (names := sorted(frames(plan))):
            columns, updates = read[name]
            rows = [(*row, time, diff) for (row, time), diff in updates.items()]
            held.append((f"{columns.ddl}, __time bigint, __diff bigint", rows))
        found: Counter[tuple[Row, int]] = Counter()
        for *row, time, diff in self._rows(
            lambda views: render(plan, dict(zip(names, views, strict=True)), single=small), held
        ):
            found[normal(row), time] += diff
        return {key: diff for key, diff in found.items() if diff}

    def _rows(self, sql: Callable[[Sequence[str]], str], held: Sequence[tuple[str, Sequence[Row]]]) -> list[Row]:
        """Return the rows of a query, which is made of the names of views of rows, each with its DDL.

        The views are leaves of prepared plans: to plan over them takes no exchange, and to run it no job.
        """
        views, leaves = self._views([ddl for ddl, _ in held])
        frame = self.session.sql(sql(views))
        try:
            plan = compiled(self.leaves, {}, frame)
        except CannotPrepareError:
            plan = None
        for leaf, (_, rows) in zip(leaves, held, strict=True):
            arrays = [pa.array([row[n] for row in rows], type=column.type) for n, column in enumerate(leaf.schema)]
            # Alone: then the number of its partition is 0, which jobs, unions and products count on.
            self.leaves.exchange([(leaf, pa.Table.from_arrays(arrays, schema=leaf.schema))])
        try:
            if plan is None:
                return [tuple(row) for row in frame.collect()]
            table = plan.table([batch for partition in self.leaves.run([plan.batches]) for batch in partition])
            return ArrowTableToRowsConversion.convert(table, frame.schema, return_as_tuples=True)
        finally:
            self.leaves.clear(leaves)  # plans are made over empty leaves

    def _views(self, schemas: Sequence[str]) -> tuple[list[str], list[Leaf]]:
        """Return the names of views over leaves with these DDLs, no view twice, and the leaves."""
        taken: Counter[str] = Counter()
        found = []
        for ddl in schemas:
            pool = self._leaves_of.setdefault(ddl, [])
            if taken[ddl] == len(pool):
                shape = to_arrow_schema(self.session.createDataFrame([], ddl).schema, timezone="UTC")
                leaf, name = self.leaves.leaf(shape), f"lab_{next(self.leaves.numbers)}"
                leaf.frame.createOrReplaceTempView(name)
                pool.append((name, leaf))
            found.append(pool[taken[ddl]])
            taken[ddl] += 1
        return [name for name, _ in found], [leaf for _, leaf in found]

    def maintain(
        self,
        sql: str,
        history: Mapping[str, Updates],
        bounds: Sequence[int],
        *,
        plan: Callable[[Stage, Window], Node | None] = delta_plan,
    ) -> dict[int, Counter[Row]]:
        """Maintain a view over the windows between ``bounds``, and return its contents at every time.

        The first window is a first step at ``bounds[0] - 1``: all that was before is new then.  Those that begin at
        even times are planned as large ones.
        """
        stages = split(self.plan(sql), "view")
        known = {name: (self.catalog[name], updates) for name, updates in history.items()}
        stored: dict[str, Updates] = {stage.name: {} for stage in stages}
        schemas = {stage.name: stage.schema for stage in stages}
        windows = list(zip([bounds[0] - 1, *bounds], [*bounds, max(TIMES) + 1], strict=False))
        for step, (lower, upper) in enumerate(windows):
            for stage in stages:
                inputs = known | {name: (schemas[name], stored[name]) for name in stored}
                new = self._step(stage, inputs, lower, upper, step == 0, plan)
                assert all(lower <= time < upper for _, time in new), f"{stage.name} wrote outside its window"
                stored[stage.name] = _sum(stored[stage.name], new)
        first = windows[0][0]
        return {time: contents(stored["view"], time) for time in TIMES if time >= first}

    def _step(
        self, stage: Stage, inputs: Mapping[str, tuple[Schema, Updates]], lower: int, upper: int, first: bool, plan: Any
    ) -> Updates:
        sides = {name: _sides(updates, lower, upper) for name, (_, updates) in inputs.items()}
        delta = {name: sides[name][Phase.NEW if first else Phase.DELTA] for name in stage.inputs}
        times = {lower} if first else {time for updates in delta.values() for _, time in updates}
        changed = frozenset(name for name, updates in delta.items() if updates)
        small = lower % 2 == 1
        node = plan(stage, Window(changed, tuple(sorted(times)), first=first, small=small))
        if node is None:
            return {}
        read = {}
        for name in frames(node):
            collection, phase = source(name)
            read[name] = (inputs[collection][0], sides[collection][phase])
        return self.run(node, read, small=small and not first)

    def recomputed(self, sql: str, history: Mapping[str, Updates], time: int) -> Counter[Row]:
        """Return what the full plans of a view's stages give for the inputs at ``time``."""
        known = {}
        for name, updates in history.items():
            held = contents(updates, time)
            known[name] = (self.catalog[name], {(row, 0): count for row, count in held.items()})
        stages = split(self.plan(sql), "view")
        for stage in stages:
            found = self.run(full_plan(stage), {name: known[name] for name in stage.inputs})
            known[stage.name] = (stage.schema, found)
        return contents(known["view"][1], 0)

    def answers(self, sql: str, history: Mapping[str, Updates]) -> dict[int, Counter[Row]]:
        """Return Spark's own answers to ``sql``, at every time, by one query."""
        held = [
            (self.catalog[name].ddl, [*contents(updates, time).elements()])
            for time in TIMES
            for name, updates in history.items()
        ]

        def every_time(views: Sequence[str]) -> str:
            named, terms = iter(views), []
            for time in TIMES:
                relations = ", ".join(f"{quote(name)} AS (SELECT * FROM {next(named)})" for name in history)
                terms.append(f"SELECT {time} AS __at, * FROM (WITH {relations} SELECT * FROM (\n{sql}\n))")
            return " UNION ALL ".join(terms)

        found: dict[int, Counter[Row]] = {time: Counter() for time in TIMES}
        for at, *row in self._rows(every_time, held):
            found[at][normal(row)] += 1
        return found


def _sum(a: Updates, b: Updates) -> Updates:
    total = Counter(a)
    total.update(b)
    return {key: diff for key, diff in total.items() if diff}


def _sides(updates: Updates, lower: int, upper: int) -> dict[Phase, Updates]:
    """Return the frames of an input; what was before the window is advanced to it, and not consolidated any further."""
    old: Counter[tuple[Row, int]] = Counter()
    for (row, time), diff in updates.items():
        if time < lower:
            old[row, lower] += diff
    delta = {(row, time): diff for (row, time), diff in updates.items() if lower <= time < upper}
    return {Phase.OLD: dict(old), Phase.DELTA: delta, Phase.NEW: _sum(dict(old), delta)}


@pytest.fixture(scope="session")
def laboratory(spark: SparkSession) -> Laboratory:
    """A laboratory in a session of its own, tuned for tiny data."""
    own = {"spark.sql.adaptive.enabled": "false", "spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
    leaves = Leaves(sibling(spark, CONF | own))
    return Laboratory(leaves, SparkAnalyst(leaves.session))
