"""Histories of two tables, and views of them maintained over their windows by lists."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import duckdb
import sqlglot

from strandline.algebra.nodes import Node, Opaque, frames, rebuilt
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.compute.lookups import Lookup, planned
from strandline.compute.rules.rule import Phase, Window, source
from strandline.compute.stage import Stage, delta_plan
from strandline.testing.lists import list_engine
from strandline.testing.lists.list_engine import ListEngine, listed, updates

Row = dict[str, Any]
Key = tuple[Any, ...]

TABLE: Final = Schema((Column("k", "int"), Column("j", "int"), Column("v", "int")))
CATALOG: Final = {"t": TABLE, "u": TABLE}


@dataclass(frozen=True)
class Answer:
    """The answer to a query: the names of its columns, and its rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)


def answer(node: Opaque) -> Callable[[Mapping[str, Sequence[Row]]], Answer]:
    """Return what answers a node's query: another database, whatever it thinks of it, since only the parts matter."""
    text = sqlglot.transpile(node.sql, read="spark", write="duckdb")[0]
    connection = duckdb.connect()

    def ask(relations: Mapping[str, Sequence[Row]]) -> Answer:
        for alias, below in zip(node.aliases, node.inputs, strict=True):
            declared = ", ".join(f'"{name}" INTEGER' for name in below.names)
            connection.execute(f'CREATE OR REPLACE TABLE "{alias}" ({declared})')
            rows = [[row[name] for name in below.names] for row in relations[alias]]
            if rows:
                marks = ", ".join("?" for _ in below.names)
                connection.executemany(f'INSERT INTO "{alias}" VALUES ({marks})', rows)
        found = connection.execute(text)
        return Answer(tuple(column[0] for column in found.description), found.fetchall())

    return ask


def random_rows(chance: random.Random, names: Sequence[str], most: int = 12) -> list[Row]:
    """Return rows of few values, NULL among them, some of them twice."""
    found = [{name: chance.choice([None, 1, 2, 3]) for name in names} for _ in range(chance.randrange(most))]
    return found + chance.sample(found, len(found) // 3)


def history(seed: int, most: int = 5) -> dict[str, list[Row]]:
    """Return random insertions and deletions of both tables, as update rows; at some times nothing happens to one."""
    chance = random.Random(seed)
    found: dict[str, list[Row]] = {}
    for name in CATALOG:
        held: list[Row] = []
        found[name] = []
        for time in range(1, 7):
            gone = [held.pop(chance.randrange(len(held))) for _ in range(min(len(held), chance.randrange(4)))]
            came = random_rows(chance, TABLE.names, most) if chance.random() < 0.7 else []
            held += came
            found[name] += [row | {TIME: time, DIFF: -1} for row in gone]
            found[name] += [row | {TIME: time, DIFF: 1} for row in came]
    return found


def maintained(
    stages: Sequence[Stage],
    tables: Mapping[str, list[Row]],
    engine: ListEngine,
    cuts: Sequence[int],
    change: Callable[[Node], Node] = lambda plan: plan,
    own: Stage | None = None,
) -> list[Row]:
    """Return the updates of a stage, ``own`` or the one with the query, from cut to cut.

    A first step goes up to the first.  ``change`` is made to the plans of its later steps.  What is looked up is what
    is asked for, no more.
    """
    own = own or next(stage for stage in stages if isinstance(stage.plan, Opaque))
    known = dict(CATALOG) | {stage.name: stage.schema for stage in stages}
    stored: dict[str, list[Row]] = {**tables, **{stage.name: [] for stage in stages}}
    for lower, upper in pairwise([0, *cuts]):
        first = not lower
        for stage in stages:
            inside = {n: [r for r in stored[n] if lower <= r[TIME] < upper] for n in stage.inputs}
            times = tuple(sorted({row[TIME] for rows in inside.values() for row in rows}))
            window = Window(frozenset(n for n, rows in inside.items() if rows), (0,) if first else times, first=first)
            plan = delta_plan(stage, window)
            if plan is None:
                continue
            plan = change(plan) if stage is own and not first else plan
            plan, lookups = (plan, ()) if first else planned(plan)
            sides: dict[str, list[Row]] = {}
            for name in {*frames(plan), *(place.frame for each in lookups for place in each.keys)}:
                of, phase = source(name.split("#")[0])
                begin, end = (lower if phase is Phase.DELTA else 0), (lower if phase is Phase.OLD else upper)
                early = 0 if first else min(times)
                wanted = [r | {TIME: max(r[TIME], early)} for r in stored[of] if begin <= r[TIME] < end]
                sides[name] = [r | {TIME: 0} for r in wanted] if first else wanted
            for each in lookups:
                keys = {_of(row, place.columns) for place in each.keys for row in sides[place.frame]}
                if each.first is None:
                    sides[each.frame] = [row for row in sides[each.frame] if _of(row, each.columns) in keys]
                else:
                    held, wanted = stored[source(each.of)[0]], keys if each.keys else {()}
                    sides[each.frame] = _first(each, held, wanted, lower, upper, min(times))
            read = {name: updates(known[source(name.split("#")[0])[0]], sides[name]) for name in frames(plan)}
            found = listed(asyncio.run(engine.evaluate(plan, read))).rows
            stored[stage.name] += [row | {TIME: upper - 1} for row in found] if first else found
    return stored[own.name]


def _first(asked: Lookup, held: Sequence[Row], keys: set[Key], lower: int, upper: int, early: int) -> list[Row]:
    """Return the first rows of each key, as they were before ``lower``; with the changes, if they are looked for."""
    assert asked.first is not None
    changed = [row for row in held if lower <= row[TIME] < upper]
    old: dict[Key, Counter[tuple[tuple[str, Any], ...]]] = {key: Counter() for key in keys}
    for row in held:
        if row[TIME] < lower and _of(row, asked.columns) in keys:
            values = tuple((name, value) for name, value in row.items() if name not in (TIME, DIFF))
            old[_of(row, asked.columns)][values] += row[DIFF]
    found = list(changed) if source(asked.of)[1] is Phase.NEW else []
    for key, counts in old.items():
        rows = [dict(values) | {TIME: early, DIFF: n} for values, n in counts.items() if n]
        gone = sum(-row[DIFF] for row in changed if row[DIFF] < 0 and _of(row, asked.columns) == key)
        found += list_engine.first_rows(rows, asked.first, gone)
    return found


def _of(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns)


def at(rows: Iterable[Row], time: int) -> dict[tuple[Any, ...], int]:
    """Return what the updates come to at a time."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if row[TIME] <= time:
            sums[tuple(value for name, value in row.items() if name not in (TIME, DIFF))] += row[DIFF]
    return {values: count for values, count in sums.items() if count}


def altered(alter: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """Return a change that alters every node of a plan."""

    def go(node: Node) -> Node:
        return alter(rebuilt(node, go))

    return go
