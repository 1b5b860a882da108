"""Keyed recompute gives, at every time, what the whole query gives; and the key of a query parts it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest
import sqlglot
from histories import CATALOG, TABLE, Row, altered, answer, at, history, maintained, random_rows
from sqlglot import exp

from strandline.algebra.nodes import (
    Filter,
    Get,
    Key,
    Node,
    Opaque,
    Project,
    Replay,
    Restrict,
    UnionAll,
    with_frames,
)
from strandline.algebra.scalar import Faithful, columns, scalar
from strandline.compute.plan.keys import key_of
from strandline.compute.plan.scalars import context
from strandline.compute.plan.view import plan_view
from strandline.compute.rules.rule import Phase, frame, source
from strandline.compute.stage import Stage, split
from strandline.errors import CollectionError
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine

SHAPES: Final = {
    "a window": "SELECT k, j, v, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM t",
    "windows with some columns in common": "SELECT k, j, sum(v) OVER (PARTITION BY k, j) AS s, "
    "rank() OVER (PARTITION BY k ORDER BY v) AS r FROM t",
    "a partition that is not shown": "SELECT v, max(j) OVER (PARTITION BY k) AS m FROM t",
    "a filter by a window": "SELECT k, v FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC) <= 2",
    "the first of each": "SELECT k, v FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v, j) AS r FROM t) "
    "WHERE r = 1",
    "a window over a join": "SELECT t.k, t.v, row_number() OVER (PARTITION BY t.k ORDER BY t.v, u.v) AS r "
    "FROM t JOIN u ON t.j = u.j",
    "a window over groups": "SELECT k, j, sum(v) AS s, rank() OVER (PARTITION BY k ORDER BY sum(v)) AS r FROM t "
    "GROUP BY k, j",
    "an aggregate without sums": "SELECT k, percentile(v, 0.5) AS p FROM t GROUP BY k",
    "a group that is not shown": "SELECT percentile(v, 0.5) AS p FROM t WHERE v IS NOT NULL GROUP BY k",
    "some grouping sets": "SELECT k, j, percentile(v, 0.5) AS p FROM t GROUP BY GROUPING SETS ((k), (k, j))",
    "except": "SELECT k, v FROM t EXCEPT SELECT k, v FROM u",
    "except all": "SELECT k, v FROM t EXCEPT ALL SELECT k, v FROM u",
    "intersect": "SELECT k FROM t INTERSECT SELECT j FROM u",
    "intersect all": "SELECT k, j FROM t INTERSECT ALL SELECT k, j FROM u",
}
"""Views whose one stage with a key is maintained by it."""

QUERIES: Final = {
    "a left join": "SELECT a.k AS x, a.v AS y, b.v AS z FROM t a LEFT JOIN u b ON a.k = b.k AND a.v < b.v",
    "a left join by all of two keys": "SELECT a.k, a.j, b.v FROM t a LEFT JOIN u b ON a.k = b.k AND b.j <=> a.j",
    "a right join": "SELECT b.k, a.v FROM t a RIGHT OUTER JOIN u b ON b.k = a.k",
    "a semi join": "SELECT a.k, a.v FROM t a LEFT SEMI JOIN u b ON a.k = b.k AND a.v > b.v",
    "an anti join": "SELECT * FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "a join by its names": "SELECT k, t.v, u.v AS w FROM t LEFT JOIN u USING (k)",
    "joins one after another": "SELECT a.k, b.v, c.v AS w FROM t a JOIN u b ON a.k = b.k LEFT JOIN t c ON c.k = b.k",
    "a join by WHERE": "SELECT a.k, count(*) AS n FROM t a, u b WHERE a.k = b.k GROUP BY a.k",
    "exists": "SELECT t.k, t.v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v > t.v)",
    "not exists": "SELECT t.k, t.v FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.v > t.v) "
    "AND NOT EXISTS (SELECT 1 FROM u WHERE t.k <=> u.k)",
    "in": "SELECT k, v FROM t WHERE k IN (SELECT j FROM u WHERE v > 1)",
    "in groups": "SELECT k, v FROM t WHERE k IN (SELECT k FROM u GROUP BY k HAVING count(*) > 1)",
    "not in, by a correlation": "SELECT k, v FROM t WHERE v NOT IN (SELECT v FROM u WHERE u.k = t.k)",
    "a scalar subquery": "SELECT k, v, (SELECT max(v) FROM u WHERE u.k = t.k) AS m FROM t",
    "a subquery of groups": "SELECT k, count(*) AS n, (SELECT sum(u.v) FROM u WHERE u.k = t.k) AS m FROM t GROUP BY k",
    "subqueries in subqueries": "SELECT k, v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND "
    "EXISTS (SELECT 1 FROM t b WHERE b.k = u.k AND b.v < u.v))",
    "distinct": "SELECT DISTINCT k, j FROM t",
    "distinct rows of a union": "SELECT DISTINCT k FROM (SELECT k FROM t UNION ALL SELECT j FROM u) s",
    "groups in a join": "SELECT g.k, g.n, u.v FROM (SELECT k, count(*) AS n FROM t GROUP BY k) g "
    "LEFT JOIN u ON g.k = u.k",
    "groups by position": "SELECT v, j AS x, count(*) AS n FROM t GROUP BY 1, x",
    "a star": "SELECT *, row_number() OVER (PARTITION BY j ORDER BY k, v) AS r FROM t",
    "lateral": "SELECT t.k, l.m FROM t, LATERAL (SELECT max(u.v) AS m FROM u WHERE u.k = t.k) l",
    "lateral, counting": "SELECT t.k, l.n FROM t, LATERAL (SELECT count(*) AS n FROM u WHERE u.k = t.k) l",
    "nested set operations": "(SELECT k FROM t UNION ALL SELECT k FROM u) EXCEPT ALL SELECT k FROM t",
}
"""Queries over `t` and `u` as they are written, which need no plan of their own to have a key."""

WITHOUT: Final = {
    "a window over all": "SELECT k, rank() OVER (ORDER BY v) AS r FROM t",
    "windows without a column in common": "SELECT count(*) OVER (PARTITION BY k) AS n, "
    "count(*) OVER (PARTITION BY j) AS m, k FROM t",
    "one aggregate": "SELECT percentile(v, 0.5) AS p FROM t",
    "a total among the grouping sets": "SELECT k, j, count(*) AS n FROM t GROUP BY ROLLUP (k, j)",
    "not in": "SELECT k FROM t WHERE k NOT IN (SELECT j FROM u)",
    "in, or else": "SELECT k FROM t WHERE k IN (SELECT j FROM u) IS NULL",
    "no correlation": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.v > 2)",
    "a correlation by an inequality": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.k)",
    "a correlation under OR": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k OR u.j = 2)",
    "a limit": "SELECT DISTINCT k FROM t ORDER BY k LIMIT 2",
    "an outer join that drops what is equal": "SELECT b.k, a.v FROM t a LEFT JOIN u b ON a.k = b.k",
    "a full join": "SELECT a.k, b.k AS l FROM t a FULL JOIN u b ON a.k = b.k",
    "an outer join filtered by equality": "SELECT a.k FROM t a LEFT JOIN u b ON a.v < b.v WHERE a.k = b.k",
    "two columns of one relation": "SELECT a.k FROM t a JOIN t b ON a.k = b.j JOIN u ON u.k = a.k",
    "a cross join": "SELECT DISTINCT t.k, u.j FROM t, u",
    "rows one by one": "SELECT k + 1 AS l FROM t",
    "a key of a group of another": "SELECT DISTINCT n, k FROM (SELECT max(k) AS k, count(*) AS n FROM t GROUP BY j) s",
}


def written(sql: str) -> Opaque:
    """Return a query over `t` and `u`, or that of them that it reads, as a node."""
    found = {table.name for table in sqlglot.parse_one(sql, dialect=Faithful).find_all(exp.Table)}
    inputs = tuple(Get(name, tuple((c, c) for c in TABLE.names)) for name in sorted(found))
    node = Opaque(inputs, tuple(sorted(found)), sql, (), "")
    return replace(node, names=tuple(answer(node)({name: [] for name in found}).columns))


def keyed(sql: str) -> tuple[tuple[Stage, ...], Stage]:
    """Return the stages of a view, and the one with a key."""
    stages = split(plan_view(sql, CATALOG, ListAnalyst()), "view")
    (own,) = [stage for stage in stages if stage.kind == "keyed"]
    return stages, own


def restricted(rows: Iterable[Row], columns: Sequence[str], keys: set[tuple[Any, ...]]) -> list[Row]:
    """Return the rows with one of these keys."""
    return [row for row in rows if tuple(row[name] for name in columns) in keys]


def parts(node: Opaque, key: Key, seeds: int = 60) -> bool:
    """Tell whether the query over the rows with some keys gives its rows with these keys, for many rows and keys."""
    ask = answer(node)
    for seed in range(seeds):
        chance = random.Random(seed)
        rows = {alias: random_rows(chance, below.names) for alias, below in zip(node.aliases, node.inputs, strict=True)}
        keys = {each for each in product((None, 1, 2, 3), repeat=len(key.output)) if chance.random() < 0.5}
        some = {a: restricted(rows[a], own, keys) for a, own in zip(node.aliases, key.inputs, strict=True)}
        whole = [dict(zip(node.names, values, strict=True)) for values in ask(rows)]
        wanted = Counter(tuple(row.values()) for row in restricted(whole, key.output, keys))
        if Counter(ask(some)) != wanted:
            return False
    return True


@pytest.mark.parametrize("shape", SHAPES)
def test_the_key_of_a_view_parts_its_query(shape: str) -> None:
    """Damage: a change shows in rows of the view that a step does not look at, and they stay as they were."""
    node = keyed(SHAPES[shape])[1].plan
    assert isinstance(node, Opaque)
    assert node.key is not None
    assert parts(node, node.key)


@pytest.mark.parametrize("shape", QUERIES)
def test_the_key_of_a_query_parts_it(shape: str) -> None:
    """Damage: as above, for queries of which the planner understands less."""
    node = written(QUERIES[shape])
    key = key_of(node)
    assert key is not None
    assert parts(node, key)


@pytest.mark.parametrize("shape", WITHOUT)
def test_a_query_that_nothing_parts_has_no_key(shape: str) -> None:
    """Damage: a step leaves rows as they were that every change may alter."""
    assert key_of(written(WITHOUT[shape])) is None


def test_a_key_that_parts_nothing_is_noticed() -> None:
    """Damage: the tests above would pass whatever the keys are."""
    node = written(SHAPES["a window"])
    assert not parts(node, Key((("j",),), ("j",)))
    node = written(SHAPES["except all"])
    assert parts(node, Key((("k",), ("k",)), ("k",)))
    assert not parts(node, Key((("k",), ("j",)), ("k",)))


# ---- over histories --------------------------------------------------------------------------------------------------


def holds(sql: str, seeds: Iterable[int], change: Callable[[Node], Node] = lambda plan: plan) -> bool:
    """Tell whether the keyed stage of a view is, at every time, what the whole query gives at that time."""
    stages, own = keyed(sql)
    assert isinstance(own.plan, Opaque)
    engine = ListEngine(MemoryBlob(), {own.plan.sql: answer(own.plan)})
    whole = [replace(stage, kind="recompute") if stage is own else stage for stage in stages]
    for seed in seeds:
        tables, cuts = history(seed), sorted(random.Random(seed).sample(range(2, 8), 3))
        try:
            kept = maintained(stages, tables, engine, cuts, change)
        except CollectionError:
            return False  # a negative count
        replayed = maintained(whole, tables, engine, range(cuts[0], 8))
        if any(at(kept, time) != at(replayed, time) for time in range(cuts[0] - 1, cuts[-1])):
            return False
    return True


@pytest.mark.drawn(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_touched_keys_give_what_the_whole_query_gives_at_every_time(shape: str) -> None:
    """Damage: a view of windows, of other aggregates or of set operations is wrong after a change."""
    assert holds(SHAPES[shape], range(25))


def _without_null_keys(node: Node) -> Node:
    if not isinstance(node, Restrict):
        return node
    there = " AND ".join(f"`{name}` IS NOT NULL" for name in node.keys.names)
    return replace(node, keys=Filter(node.keys, scalar(there)))


def _keys_of_one_input(node: Node) -> Node:
    if isinstance(node, Restrict) and isinstance(node.keys, UnionAll):
        return replace(node, keys=node.keys.inputs[0])
    return node


def _prior_as_a_whole(node: Node) -> Node:
    if isinstance(node, Replay) and isinstance(node.prior, Restrict):
        return replace(node, prior=node.prior.input)
    return node


def _inputs_as_a_whole(node: Node) -> Node:
    if isinstance(node, Replay):
        return replace(node, inputs=tuple(i.input if isinstance(i, Restrict) else i for i in node.inputs))
    return node


def _old_inputs(node: Node) -> Node:
    def old(name: str) -> str:
        of, phase = source(name)
        return frame(of, Phase.OLD if phase is Phase.NEW else phase)

    return with_frames(node, old)


def _last_time_only(node: Node) -> Node:
    return replace(node, times=node.times[-1:]) if isinstance(node, Replay) else node


def _half_of_the_key(node: Node) -> Node:
    if isinstance(node, Restrict) and isinstance(node.input, Get) and source(node.input.frame)[0] == "view":
        names = node.keys.names[:1]
        return replace(node, columns=node.columns[:1], keys=Project(node.keys, columns(names)))
    return node


PLANTED: Final[dict[str, tuple[str, Callable[[Node], Node]]]] = {
    "NULL is no key": ("a window", _without_null_keys),
    "the keys of one input only": ("except all", _keys_of_one_input),
    "all stored rows withdrawn": ("a window", _prior_as_a_whole),
    "inputs of all keys": ("an aggregate without sums", _inputs_as_a_whole),
    "inputs without their changes": ("a filter by a window", _old_inputs),
    "one time for all": ("a window", _last_time_only),
    "stored rows found by half of a key": ("intersect all", _half_of_the_key),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """Damage: the test of histories would pass whatever the rule does."""
    shape, alter = PLANTED[name]
    assert not holds(SHAPES[shape], range(25), altered(alter))


def test_a_stage_with_a_key_that_parts_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: as above, for what the planner says."""
    wrong = Key((("j",),), ("j_2",))
    monkeypatch.setattr(context, "key_of", lambda node: wrong)
    assert not holds(SHAPES["a window"], range(25))
