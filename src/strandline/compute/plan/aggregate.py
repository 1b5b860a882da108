"""GROUP BY: from expressions with aggregates to a `Reduce` and expressions over its output.

A `Reduction` is asked for each expression of SELECT, HAVING and ORDER BY in turn; it finds the keys and aggregate
calls in them, gives each a column, and returns what is left.  Equal calls are one column.  FILTER, count_if and count
over several arguments become an argument that is NULL where a row does not count, which every planned aggregate
ignores.

GROUPING SETS, ROLLUP and CUBE (`grouping_sets`) are a union of Reduces: in each the keys of its set are columns, and
the others NULL.  Aggregates see the rows unchanged, and `grouping` is a literal of each.  Aggregates that Spark
computes itself, inside an `Opaque`, are made definite by `definite_folds`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Aggregate, Filter, Node, Project, Reduce, UnionAll
from strandline.algebra.scalar import (
    Scalar,
    binary,
    call,
    case,
    cast,
    column,
    conjunction,
    is_null,
    number,
    operand,
    text,
)
from strandline.algebra.schema import RESERVED, Column, Schema
from strandline.compute.plan.scalars.context import Context, Unplanned, filled, parsed, project, select
from strandline.compute.plan.sql import FOLDED, PLANNED, VARIANCES, counts_rows, has_aggregate, is_aggregate, replaced

_ARGUMENTS: Final = f"{RESERVED}arguments"
_GROUPINGS: Final = {"grouping": "tinyint", "grouping_id": "bigint"}
"""The functions that say which keys are not in a row's set, and their types."""


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    argument: Scalar | None
    distinct: bool


@dataclass(slots=True)
class Reduction:
    """A GROUP BY under construction over ``node``; ``keys`` are expressions over its columns.

    ``after``: columns that will stand beside its groups.  ``sets``: the keys of each grouping set, if there are any.
    """

    context: Context
    node: Node
    keys: list[exp.Expr]
    after: frozenset[str] = frozenset()
    sets: Sequence[frozenset[Scalar]] = ()
    _columns: dict[Scalar, str] = field(default_factory=dict)
    _calls: dict[_Call, str] = field(default_factory=dict)
    _marks: dict[Scalar, tuple[str, str, tuple[Scalar, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.keys:
            own = Scalar(key)
            if own not in self._columns:
                self._columns[own] = self.context.names.fresh(own.column or "key")

    def over(self, expression: exp.Expr) -> exp.Expr:
        """Return ``expression`` (over the input's columns) over the Reduce's output columns."""

        def lift(node: exp.Expr) -> exp.Expr:
            own = Scalar(node)
            if own in self._columns:
                return column(self._columns[own])
            if isinstance(node, exp.Window):
                return self._window(node)
            if self.sets and isinstance(node, exp.Anonymous) and node.name.lower() in _GROUPINGS:
                return column(self._mark(node))
            if is_aggregate(node):
                return column(self._column(_call(node)))
            if isinstance(node, exp.Column) and node.name not in self.after:
                raise Unplanned(f"{node.name} is neither a key nor inside an aggregate")
            return node

        return replaced(expression, lift)

    def _window(self, window: exp.Window) -> exp.Expr:
        """Lift what is inside a window; its own function is no aggregate of this GROUP BY."""
        lifted = _inside(window.copy(), self, but="this")
        lifted.set("this", _inside(window.this.copy(), self))
        return lifted

    def _column(self, wanted: _Call) -> str:
        if wanted not in self._calls:
            first = None if wanted.argument is None else wanted.argument.tree.find(exp.Column)
            self._calls[wanted] = self.context.names.fresh(f"{wanted.function}_{'' if first is None else first.name}")
        return self._calls[wanted]

    def _mark(self, grouping: exp.Anonymous) -> str:
        """Return the column of a call that says which keys are not in the set: all keys, or the one that it names."""
        function, wanted = grouping.name.lower(), Scalar(grouping.copy())
        keys = tuple(self._columns)
        if function == "grouping":
            keys = tuple(Scalar(each.unnest()) for each in grouping.expressions)
            if len(keys) != 1 or keys[0] not in self._columns:
                raise Unplanned(f"{text(grouping)}, which names no key")
        if wanted not in self._marks:
            self._marks[wanted] = self.context.names.fresh(function), _GROUPINGS[function], keys
        return self._marks[wanted][0]

    def rows(self) -> Node:
        """Return the groups, those of each set if there are sets."""
        if not self.sets:
            return self.reduce()
        rows = "" if all(self.sets) else self._column(_Call("count", None, distinct=False))
        whole = self.reduce()
        parts = tuple(self._of_set(whole, keys, rows) for keys in self.sets)
        return parts[0] if len(parts) == 1 else UnionAll(parts)

    def _of_set(self, whole: Reduce, keys: frozenset[Scalar], rows: str) -> Node:
        """Return the groups of the set ``keys``, with all columns; ``rows`` counts the rows of a group."""
        groups: Node = replace(whole, keys=tuple(key for key in whole.keys if key[1] in keys))
        if not keys:  # no rows have no total
            groups = Filter(groups, Scalar(binary(exp.GT, column(rows), number(0))))
        found = [
            (name, column(name) if value in keys else cast(exp.Null(), self.context.types[name]))
            for name, value in whole.keys
        ]
        found += [(each.name, column(each.name)) for each in whole.aggregates]
        for name, type_, of in self._marks.values():
            bits = sum(1 << n for n, key in enumerate(reversed(of)) if key not in keys)
            found.append((name, cast(number(bits), type_)))
        return project(groups, found)

    def reduce(self) -> Reduce:
        """Return the Reduce, its types learned from Spark."""
        keys = tuple((name, value) for value, name in self._columns.items())
        distinct = dict.fromkeys(c.argument for c in self._calls if c.argument is not None)
        arguments = {value: f"argument_{n}" for n, value in enumerate(distinct)}
        types: dict[str, str] = {}
        results: dict[str, str] = {}
        if arguments:
            schema = self.context.schema(Project(self.node, tuple((name, value) for value, name in arguments.items())))
            types = {c.name: c.type for c in schema}
        if self._calls:
            results = self._results(arguments, types)
        aggregates = tuple(
            Aggregate(
                name,
                call.function,
                call.argument,
                call.distinct,
                results[name],
                types[arguments[call.argument]] if call.argument is not None else "bigint",
            )
            for call, name in self._calls.items()
        )
        node = Reduce(self.node, keys, aggregates)
        self.context.learn(node)
        return node

    def _results(self, arguments: dict[Scalar, str], types: dict[str, str]) -> dict[str, str]:
        """Ask Spark for the types of the aggregates."""
        items: list[tuple[exp.Expr, str]] = []
        for wanted, name in self._calls.items():
            value = exp.Star() if wanted.argument is None else column(arguments[wanted.argument])
            items.append((call(wanted.function, exp.Distinct(expressions=[value]) if wanted.distinct else value), name))
        columns = [Column(name, type_) for name, type_ in types.items()] or [Column("unused", "int")]
        schema = self.context.analysed(text(select(items, _ARGUMENTS)), (), {_ARGUMENTS: Schema(tuple(columns))})
        return {c.name: c.type for c in schema}


def _inside(node: exp.Expr, reduction: Reduction, but: str = "") -> exp.Expr:
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expr) and key != but:
            node.set(key, reduction.over(value))
        elif isinstance(value, list):
            node.set(key, [reduction.over(v) if isinstance(v, exp.Expr) else v for v in value])
    return node


def _call(node: exp.Expr) -> _Call:
    """Return what an aggregate call means, or raise `Unplanned` if there is no rule for it."""
    condition: exp.Expr | None = None
    if isinstance(node, exp.Filter):
        condition, node = node.expression.this, node.this
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in PLANNED:
        raise Unplanned(f"the aggregate {text(node)} has no maintenance rule")
    name, arguments, distinct = node.name.lower(), list(node.expressions), False
    function = PLANNED[name]
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        distinct, arguments = True, list(arguments[0].expressions)
    if any(has_aggregate(a) or a.find(exp.Window) is not None for a in arguments):
        raise Unplanned("an aggregate inside an aggregate")
    one = number(1)
    if counts_rows(node):
        return _Call("count", None if condition is None else Scalar(case(condition, one)), distinct)
    if not arguments or (len(arguments) > 1 and (function != "count" or distinct)):
        raise Unplanned(f"{text(node)} has no maintenance rule")
    if name == "count_if":
        both = conjunction(term for term in (condition, arguments[0]) if term is not None)
        return _Call("count", Scalar(case(both, one)), distinct)
    argument = arguments[0]
    if len(arguments) > 1:
        argument = case(conjunction(exp.Not(this=is_null(each)) for each in arguments), one)
    if condition is not None:
        argument = case(condition, argument)
    return _Call(function, Scalar(argument), distinct and function not in ("min", "max"))


_ROUNDED: Final = ("float", "double", "string")
"""Argument types that Spark adds up as doubles, with a rounding at each step."""
_WIDE: Final = "bigint"
"""The argument type whose sum may overflow in one order of rows and not in another, and whose average is of doubles."""


def definite_folds(context: Context, node: Node, expression: exp.Expr) -> exp.Expr:
    """Return ``expression`` (over ``node``'s columns) with aggregates that no order of rows changes.

    It is for queries that are recomputed: floats fold sorted values, 64-bit integers add exactly.  A `Reduce` needs
    none of this, because its rules do the same.
    """

    def definite(found: exp.Expr) -> exp.Expr:
        fold, over = (found.this, found) if isinstance(found, exp.Window) else (found, None)
        fold, condition = (fold.this, fold) if isinstance(fold, exp.Filter) else (fold, None)
        if not isinstance(fold, exp.Anonymous) or fold.name.lower() not in FOLDED or len(fold.expressions) != 1:
            return found
        argument, name = fold.expressions[0], fold.name.lower()
        if distinct := isinstance(argument, exp.Distinct):
            argument = argument.expressions[0]
        type_ = "double" if name in VARIANCES else _type(context, node, argument)
        if type_ == _WIDE:
            total, counted = (_placed(each, condition, over) for each in _exact(argument, distinct=distinct))
            template = _EXACT_MEAN if name in _MEANS else _EXACT_TRIED if name == "try_sum" else _EXACT_TOTAL
            return operand(filled(template, {"total": total, "counted": counted}))
        if type_ not in _ROUNDED:
            return found
        gathered = call("collect_set" if distinct else "collect_list", cast(argument, "double"))
        template = _variance(name) if name in VARIANCES else _MEAN if name in _MEANS else _TOTAL
        return operand(filled(template, {"summed": call("sort_array", _placed(gathered, condition, over))}))

    return replaced(expression, definite)


def _exact(argument: exp.Expr, *, distinct: bool) -> tuple[exp.Expr, exp.Expr]:
    """Return the exact sum of 64-bit integers, and how many there are."""
    terms, counted = cast(argument, "decimal(20,0)"), argument.copy()
    if distinct:
        terms, counted = exp.Distinct(expressions=[terms]), exp.Distinct(expressions=[counted])
    return call("sum", terms), call("count", counted)


def _placed(aggregate: exp.Expr, *around: exp.Expr | None) -> exp.Expr:
    """Return ``aggregate`` under the condition and over the window of another one."""
    for each in around:
        if each is not None:
            outer = each.copy()
            outer.set("this", aggregate)
            aggregate = outer
    return aggregate


def _type(context: Context, node: Node, argument: exp.Expr) -> str:
    if argument.find(exp.Window, exp.AggFunc) is not None:
        raise Unplanned("an aggregate of an aggregate")
    return context.schema(Project(node, (("argument", Scalar(argument)),))).columns[0].type


_MEANS: Final = ("avg", "mean", "try_avg")
_SUM: Final = (
    "aggregate(summed, named_struct('t', 0D, 'v', 0D, 'n', 0D),"
    " (a, v) -> IF(v = a.v, named_struct('t', a.t, 'v', v, 'n', a.n + 1),"
    " named_struct('t', a.t + a.v * a.n, 'v', v, 'n', 1D)), a -> a.t + a.v * a.n)"
)
"""Each value once, times how often it is there: as `engine.sql.grouping` adds them, which keeps counts."""
_TOTAL: Final = parsed(f"CASE WHEN size(summed) > 0 THEN {_SUM} END")
_EXACT_TOTAL: Final = parsed("CAST(total AS BIGINT)")
_EXACT_TRIED: Final = parsed("TRY_CAST(total AS BIGINT)")
_EXACT_MEAN: Final = parsed("CAST(total AS DOUBLE) / NULLIF(counted, 0L)")
_MEAN: Final = parsed(f"CASE WHEN size(summed) > 0 THEN {_SUM} / size(summed) END")


def _variance(name: str) -> exp.Expr:
    """Return Welford's recurrence over the sorted values (B. P. Welford, Technometrics 4(3), 1962)."""
    divisor, root = VARIANCES[name]
    least, by = (1, "a.n - 1") if divisor == "sample" else (0, "a.n")
    mean = "a.m + (v - a.m) / (a.n + 1)"
    step = f"named_struct('n', a.n + 1, 'm', {mean}, 's', a.s + (v - a.m) * (v - ({mean})))"
    value = f"sqrt(a.s / ({by}))" if root else f"a.s / ({by})"
    start = "named_struct('n', 0D, 'm', 0D, 's', 0D)"
    return parsed(f"aggregate(summed, {start}, (a, v) -> {step}, a -> CASE WHEN a.n > {least} THEN {value} END)")


AFTER_KEYS: Final = ("grouping_sets", "cube", "rollup", "totals")
"""What may follow the keys of a GROUP BY, in sqlglot's words."""
SETS_MAX: Final = 16
"""Each set is a collection of its own, and a part of each step."""


def grouping_sets(group: exp.Group) -> tuple[list[exp.Expr], list[list[exp.Expr]]] | None:
    """Return all keys of ``group`` as they are written, and those of each set; None if it has but one set of keys.

    To Spark, one set that is empty is no set at all, so that its total is there even of no rows.

    Each set is grouped by itself.  If there are several of these clauses, or plain keys beside them, each set of one
    is combined with each set of the next.

    >>> from strandline.compute.plan.sql import parse
    >>> keys, sets = grouping_sets(parse("SELECT 1 FROM t GROUP BY a, ROLLUP (b, (c, d))").args["group"])
    >>> [[key.name for key in each] for each in (keys, *sets)]
    [['a', 'b', 'c', 'd'], ['a', 'b', 'c', 'd'], ['a', 'b'], ['a']]
    >>> grouping_sets(parse("SELECT 1 FROM t GROUP BY GROUPING SETS (())").args["group"])
    ([], [])
    """
    after = [each for name in AFTER_KEYS for each in group.args.get(name) or ()]
    several = [each for each in group.expressions if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets)]
    if not (after or several):
        return None
    if after and (several or len(after) > 1 or not isinstance(after[0], exp.Rollup | exp.Cube | exp.GroupingSets)):
        raise Unplanned("grouping sets of several kinds after the keys")
    written = group.expressions
    if after:  # as in GROUP BY a, b WITH ROLLUP
        written = [after[0] if after[0].expressions else type(after[0])(expressions=group.expressions)]
    elif any(isinstance(each, exp.Tuple) for each in written):
        raise Unplanned("GROUP BY a structure beside grouping sets")
    combined: list[list[exp.Expr]] = [[]]
    for each in written:
        combined = [[*before, *own] for before in combined for own in _sets(each)]
        if len(combined) > SETS_MAX:
            raise Unplanned(f"there are more than {SETS_MAX} grouping sets")
    keys = [key for each in group.expressions + after for key in _keys(each)]
    return keys, combined if keys or len(combined) > 1 else []


def _sets(element: exp.Expr) -> Iterator[list[exp.Expr]]:
    """Yield the sets of an element of GROUP BY, or of one of GROUPING SETS."""
    match element:
        case exp.GroupingSets():
            for each in element.expressions:
                yield from _sets(each)
        case exp.Rollup() | exp.Cube():
            parts = [list(_keys(each)) for each in element.expressions]
            for count in range(len(parts), -1, -1):
                chosen = [parts[:count]] if isinstance(element, exp.Rollup) else itertools.combinations(parts, count)
                yield from ([key for part in some for key in part] for some in chosen)
        case _:
            yield list(_keys(element))


def _keys(element: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the keys of an element, in the order in which they are written."""
    if isinstance(element, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        for each in element.expressions:
            yield from _keys(each)
    else:
        yield element.unnest()
