"""Plans over lists of updates: a second definition of each node of `algebra.nodes`, row by row.

It is written from the nodes' docstrings and the design's table of rules, not from the engine's SQL, and is meant for
small inputs.  A row is a dict of its columns, ``__time`` and ``__diff``.

A query that only Spark can run (`Opaque`, `Replay`) is a Python function here, looked up by its text.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeAlias

from sqlglot import exp

from strandline.algebra.nodes import (
    Accumulate,
    Aggregate,
    Constant,
    Failing,
    Filter,
    Get,
    Join,
    Negate,
    Newest,
    Node,
    Opaque,
    Project,
    Reduce,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
)
from strandline.algebra.scalar import Scalar
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import CollectionError, InvalidUsage
from strandline.sources.envelopes import changed
from strandline.testing.lists.list_expressions import Evaluator, cast, evaluator_of, has_value, in_range

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]
Query: TypeAlias = Callable[[Mapping[str, Sequence[Row]]], Iterable[Key]]
"""A whole query: from the rows of its relations, by their names, to rows of values in the order of its columns."""

FOREVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Plans:
    """Evaluates plans.  ``frames``: the updates that `Get` reads; ``queries``: by their SQL text."""

    frames: Mapping[str, Sequence[Row]]
    queries: Mapping[str, Query]
    origin: int

    def updates(self, node: Node) -> list[Row]:
        """Return the updates of ``node``, not consolidated.

        Raises `EvaluationError` for a row on which an expression fails, `InvalidUsage` for an unknown query.
        """
        match node:
            case Get():
                return [_kept(node.columns, row) for row in self.frames[node.frame]]
            case Constant():
                return list(self._constant(node))
            case Project():
                return list(_projected(node, self.updates(node.input)))
            case Filter():
                holds = evaluator_of(node.predicate)
                return [row for row in self.updates(node.input) if holds(row) is True]
            case Join():
                return self._join(node)
            case UnionAll():
                return [dict(zip(node.names, values, strict=True)) | stamp for values, stamp in self._each(node.inputs)]
            case Negate():
                return [row | {DIFF: -row[DIFF]} for row in self.updates(node.input)]
            case Reduce():
                rows = self.updates(node.input)
                latest = max((row[TIME] for row in rows), default=0)
                groups = _groups(node, rows) if node.keys else _groups(node, rows) or {(): []}
                found = (_grouped(node, key, members, FOREVER) for key, members in groups.items())
                return list(_stamped(node.names, filter(None, found), latest, 1))
            case Opaque():
                read = [self.updates(below) for below in node.inputs]
                latest = max((row[TIME] for rows in read for row in rows), default=0)
                return list(_stamped(node.names, self._answer(node, read, FOREVER), latest, 1))
            case Accumulate():
                return list(self._accumulate(node))
            case Regroup():
                return list(self._regroup(node))
            case Replay():
                return list(self._replay(node))
            case Restrict():
                keys = {_values(node.keys.names, row) for row in self.updates(node.keys)}
                return [row for row in self.updates(node.input) if _values(node.columns, row) in keys]
            case Failing():
                return [_error(node, row) for row in self.updates(node.input)]
            case Newest():
                records, held, erring = (self.updates(each) for each in (node.records, node.held, node.errors))
                updates = changed(records, held, erring, node.schema.names, node.key)
                return [{name: row[name] for name in (*node.names, TIME, DIFF)} for row in updates]

    def _each(self, nodes: Iterable[Node]) -> Iterator[tuple[Key, Row]]:
        for node in nodes:
            for row in self.updates(node):
                yield _values(node.names, row), {TIME: row[TIME], DIFF: row[DIFF]}

    def _constant(self, node: Constant) -> Iterator[Row]:
        for row in node.rows:
            values = (evaluator_of(value)({}) for value in row)
            yield dict(zip(node.names, values, strict=True)) | {TIME: self.origin + node.time, DIFF: 1}

    def _join(self, node: Join) -> list[Row]:
        joined: list[Row] = [{TIME: 0, DIFF: 1}]
        conditions = [evaluator_of(condition) for condition in node.conditions]
        for below in node.inputs:
            rows = self.updates(below)
            joined = [
                {**left, **row, TIME: max(left[TIME], row[TIME]), DIFF: left[DIFF] * row[DIFF]}
                for left in joined
                for row in rows
            ]
        return [row for row in joined if all(holds(row) is True for holds in conditions)]

    def _accumulate(self, node: Accumulate) -> Iterator[Row]:
        keys, sums = _evaluators(node.keys), [(a, evaluator_of(a.contribution)) for a in node.accumulators]
        gained: dict[Key, dict[int, list[Any]]] = defaultdict(dict)
        if node.start is not None:
            gained[()][self.origin + node.start] = [0] * len(sums)
        for row in self.updates(node.delta):
            added = [contribution(row) * row[DIFF] for _, contribution in sums]
            times = gained[tuple(key(row) for key in keys)]
            times[row[TIME]] = [a + b for a, b in zip(times.get(row[TIME], [0] * len(sums)), added, strict=True)]
        before: dict[Key, list[Any]] = {}
        names = [name for name, _ in node.keys]
        for row in self.updates(node.prior):
            key = _values(names, row)
            stored = [row[a.name] * row[DIFF] for a, _ in sums]
            before[key] = [a + b for a, b in zip(before.get(key, [0] * len(sums)), stored, strict=True)]
        position = [a.name for a, _ in sums].index(node.rows)
        for key, times in gained.items():
            last = before.get(key)
            for time in sorted(times):
                new = [
                    cast(a + b, s.type) for a, b, (s, _) in zip(last or [0] * len(sums), times[time], sums, strict=True)
                ]
                if last is not None and (not names or last[position]):
                    yield dict(zip(node.names, (*key, *last), strict=True)) | {TIME: time, DIFF: -1}
                if not names or new[position]:
                    yield dict(zip(node.names, (*key, *new), strict=True)) | {TIME: time, DIFF: 1}
                last = new

    def _regroup(self, node: Regroup) -> Iterator[Row]:
        keys = _evaluators(node.keys)
        touched: dict[Key, set[int]] = defaultdict(set)
        if node.start is not None:
            touched[()].add(self.origin + node.start)
        for row in self.updates(node.delta):
            touched[tuple(key(row) for key in keys)].add(row[TIME])
        groups = _groups(node, self.updates(node.new))
        for key, moments in touched.items():
            for time, until in pairwise([*sorted(moments), None]):
                assert time is not None
                values = _grouped(node, key, groups.get(key, []), time)
                if values is None:
                    continue
                yield from _stamped(node.names, [values], time, 1)
                if until is not None:
                    yield from _stamped(node.names, [values], until, -1)
        names = [name for name, _ in node.keys]
        for row in self.updates(node.prior):
            key = _values(names, row)
            if key in touched:
                yield row | {TIME: min(touched[key]), DIFF: -row[DIFF]}

    def _replay(self, node: Replay) -> Iterator[Row]:
        read = [self.updates(below) for below in node.inputs]
        times = [self.origin + time for time in node.times]
        for row in self.updates(node.prior):
            yield row | {TIME: times[0], DIFF: -row[DIFF]}
        for time, until in pairwise([*times, None]):
            assert time is not None
            answer = list(self._answer(node, read, time))
            yield from _stamped(node.names, answer, time, 1)
            if until is not None:
                yield from _stamped(node.names, answer, until, -1)

    def _answer(self, node: Opaque | Replay, read: Sequence[Sequence[Row]], time: int) -> Iterable[Key]:
        query = self.queries.get(node.sql)
        if query is None:
            raise InvalidUsage(f"ListEngine was given no function for the query {node.sql!r}")
        relations = zip(node.aliases, node.inputs, read, strict=True)
        partial = isinstance(node, Replay) and node.partial
        return query({alias: multiset(below.names, rows, time, partial) for alias, below, rows in relations})


def multiset(names: Sequence[str], updates: Iterable[Row], time: int = FOREVER, partial: bool = False) -> list[Row]:
    """Return the plain rows of the updates up to ``time``, each as often as its count.

    Raises `CollectionError` if a row has a negative count and they are not ``partial``.
    """
    counts: Counter[Key] = Counter()
    for row in updates:
        if row[TIME] <= time:
            counts[_values(names, row)] += row[DIFF]
    for values, count in counts.items():
        if count < 0 and not partial:
            raise CollectionError(f"a row has the negative count {count}: {dict(zip(names, values, strict=True))}")
    return [dict(zip(names, values, strict=True)) for values in counts.elements()]


def _kept(columns: Sequence[tuple[str, str]], row: Row) -> Row:
    kept = {out: row[own] for out, own in columns}
    kept[TIME], kept[DIFF] = row[TIME], row[DIFF]
    return kept


def _error(node: Failing, row: Row) -> Row:
    said = zip(node.expressions, node.texts, strict=True)
    failed = [words for each, words in said if not has_value(evaluator_of(each), row)]
    values = {shown: row[own] for shown, own in node.row}
    described = {"collection": node.where, "expression": "; ".join(failed), "row": values}
    text = json.dumps(described, separators=(",", ":"), default=str)
    return {ERROR: text, TIME: row[TIME], DIFF: row[DIFF]} | {name: row[name] for name in node.kept}


def _projected(node: Project, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the values of each row, once for each element of what it explodes."""
    columns = [(name, evaluator_of(value)) for name, value in node.columns if not value.generates]
    made = next(((name, evaluator_of(_exploded(value))) for name, value in node.columns if value.generates), None)
    for row in rows:
        values = {name: value(row) for name, value in columns} | {TIME: row[TIME], DIFF: row[DIFF]}
        if made is None:
            yield values
        else:
            name, elements = made
            yield from (values | {name: element} for element in elements(row) or ())


def _exploded(value: Scalar) -> Scalar:
    """Return what is exploded; no other generator is known here."""
    match value.tree:
        case exp.Anonymous(this=name, expressions=[elements]) if name.lower() == "explode":
            return Scalar(elements)
    raise InvalidUsage(f"list_plans knows no generator but explode: {value.sql}")


def _values(names: Iterable[str], row: Row) -> Key:
    return tuple(row[name] for name in names)


def _stamped(names: Sequence[str], rows: Iterable[Key], time: int, diff: int) -> Iterator[Row]:
    for values in rows:
        yield dict(zip(names, values, strict=True)) | {TIME: time, DIFF: diff}


def _evaluators(columns: Sequence[tuple[str, Scalar]]) -> list[Evaluator]:
    return [evaluator_of(value) for _, value in columns]


# ---- groups ----------------------------------------------------------------------------------------------------------

Member: TypeAlias = tuple[Key, int, int]
"""One update of a group: the arguments of the aggregates, the time and the diff."""


def _groups(node: Reduce | Regroup, rows: Iterable[Row]) -> dict[Key, list[Member]]:
    keys = _evaluators(node.keys)
    arguments = [None if a.argument is None else evaluator_of(a.argument) for a in node.aggregates]
    groups: dict[Key, list[Member]] = defaultdict(list)
    for row in rows:
        seen = tuple(None if argument is None else argument(row) for argument in arguments)
        groups[tuple(key(row) for key in keys)].append((seen, row[TIME], row[DIFF]))
    return groups


def _grouped(node: Reduce | Regroup, key: Key, members: Iterable[Member], time: int) -> Key | None:
    """Return the row of a group at ``time``; None if it has no members then, and so (with keys) no row."""
    counts: Counter[Key] = Counter()
    for seen, at, diff in members:
        if at <= time:
            counts[seen] += diff
    held = [(seen, count) for seen, count in counts.items() if count]
    if node.keys and not held:
        return None
    return (*key, *(_aggregated(a, [(seen[i], n) for seen, n in held]) for i, a in enumerate(node.aggregates)))


def _aggregated(aggregate: Aggregate, held: Sequence[tuple[Any, int]]) -> Any:
    """Return an aggregate of values with their counts."""
    if aggregate.argument is None:
        return sum(count for _, count in held)
    values = [(value, 1 if aggregate.distinct else count) for value, count in held if value is not None]
    if aggregate.distinct:
        values = list(dict(values).items())
    count = sum(n for _, n in values)
    match aggregate.function:
        case "count":
            return count
        case "min":
            return min((value for value, _ in values), default=None)
        case "max":
            return max((value for value, _ in values), default=None)
        case _ if not count:
            return None
        case "sum":
            return cast(_total(values), aggregate.type)
        case "avg":
            total = _total(values)
            return cast(total / count if isinstance(total, Decimal) else float(total) / count, aggregate.type)
    raise InvalidUsage(f"list_plans knows no aggregate {aggregate.function!r}")


def _total(values: Sequence[tuple[Any, int]]) -> Any:
    if any(isinstance(value, float) for value, _ in values):
        counts: Counter[float] = Counter()
        for value, count in values:
            counts[value] += count
        return sum(value * counts[value] for value in sorted(counts))  # each value once, as the engine adds them
    total = sum(value * count for value, count in values)
    return in_range(total) if isinstance(total, int) else total
