"""The definite meaning of a view, as one query that plain Spark answers: what `verify` compares a view with.

Most queries mean what they say, and are returned as their author wrote them.  Where plain Spark may give one of several
answers (rows that an ORDER BY does not tell apart, sums of floats in any order), the text is completed by the rules
that law D states: ties are broken by the row, floats are added up in the order of their values.  So `verify` compares a
view with what it must hold, and never with another arbitrary answer.

This is written for itself, beside the planner and not with it: the planner completes its plan, this completes the text,
and a mistake in one of them shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sqlglot import exp

from strandline.algebra.scalar import text
from strandline.algebra.schema import Schema
from strandline.compute.plan.scalars.context import Analyst
from strandline.compute.plan.scalars.order import is_open_list, is_positional, is_settled, show_keys
from strandline.compute.plan.sql import in_sight, mentioned, parse
from strandline.errors import DefinitionError

_E = TypeVar("_E", bound=exp.Expr)

_MEANS: Final = ("avg", "mean", "try_avg")
_SPREAD: Final = {
    **dict.fromkeys(("var_pop",), "{deviations} / {count}"),
    **dict.fromkeys(("stddev_pop",), "sqrt({deviations} / {count})"),
    **dict.fromkeys(("variance", "var_samp"), "{deviations} / ({count} - 1)"),
    **dict.fromkeys(("std", "stddev", "stddev_samp"), "sqrt({deviations} / ({count} - 1))"),
}
"""Variances and what is made of them, by the sum of the squared deviations from the mean."""
_ADDED: Final = ("sum", "try_sum", *_MEANS, *_SPREAD)
_FLOATS: Final = ("float", "double", "string")
"""Types that Spark adds up as doubles."""
_WIDE: Final = "bigint"
"""A type that it averages as doubles, and whose sum may overflow on the way."""
_BY_POSITION: Final = ("lag", "lead", "ntile", "row_number")
_FIRST: Final = ("any_value", "first", "first_value")
_LAST: Final = ("last", "last_value")


class Inexpressible(Exception):
    """The meaning of this query cannot be written as a text."""


def meaning(sql: str, relations: Mapping[str, Schema], analyst: Analyst) -> str | None:
    """Return the query whose only answer is the view's value; None if it cannot be written as one.

    ``relations`` are the collections that ``sql``, a view's text, reads.
    """
    tree = parse(sql)
    if tree is None or not any(map(_open, tree.walk())):
        return sql
    whole = tree.copy()
    try:
        for query in reversed(list(whole.find_all(exp.Select, exp.SetOperation, exp.Subquery))):  # what is inside first
            _Completion(query, relations, analyst).complete()
        show_keys(whole)
        completed = text(whole)
        same = analyst.schema_of(completed, relations, ours=True) == analyst.schema_of(sql, relations)
    except (Inexpressible, DefinitionError):
        return None
    return completed if same else None


def _open(node: exp.Expr) -> bool:
    """Tell whether plain Spark may have a choice at ``node``."""
    match node:
        case exp.Limit() | exp.Offset() | exp.Fetch():
            return True
        case exp.Window():
            return is_positional(node)
        case exp.WithinGroup():
            return is_open_list(node)
        case exp.Anonymous():
            return node.name.lower() in _ADDED
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Completion:
    """Completes one SELECT (or set operation) of a query, in place; what is inside it is complete already."""

    query: exp.Expr
    relations: Mapping[str, Schema]
    analyst: Analyst

    def complete(self) -> None:
        """Leave Spark no choice."""
        if isinstance(self.query, exp.Select):
            for listed in filter(is_open_list, list(_own(self.query, exp.WithinGroup))):
                listed.expression.append(
                    "expressions", _ascending(exp.cast(listed.this.expressions[0].copy(), "string"))
                )
            for window in [each for each in _own(self.query, exp.Window) if is_positional(each)]:
                window.replace(self._window(window))
            for call in reversed([each for each in _own(self.query, exp.Anonymous) if each.name.lower() in _ADDED]):
                self._fold(call)  # what is inside first
        if any(self.query.args.get(key) is not None for key in ("limit", "offset")):
            self._limit()

    def _limit(self) -> None:
        """Order by all outputs, by position, after what the author orders by.

        Without an order of its own a limited query may have that of the query inside it: which, is not for us to say.
        """
        if self.query.args.get("order") is None and self.query.find(exp.Order) is not None:
            raise Inexpressible
        if isinstance(self.query, exp.Subquery):
            raise Inexpressible
        count = self._width()
        order = self.query.args.get("order")
        keys = [] if order is None else list(order.expressions)
        ties = [_ascending(exp.Literal.number(position)) for position in range(1, count + 1)]
        self.query.set("order", exp.Order(expressions=[*keys, *ties]))

    def _width(self) -> int:
        """Return the number of outputs; Spark says it of those that are not named one by one."""
        outputs = self.query.selects if isinstance(self.query, exp.Query) else []
        if outputs and all(isinstance(each, exp.Column | exp.Alias) and not each.is_star for each in outputs):
            return len(outputs)  # so it may read what is outside of it
        bare = self.query.copy()
        for key in ("order", "limit", "offset"):
            bare.set(key, None)
        return len(self._schema(text(bare)).columns)

    def _window(self, window: exp.Window) -> exp.Expr:
        """Return ``window`` with an order of all rows; itself where no order matters, and none can be written."""
        try:
            return self._ordered(window)
        except Inexpressible:
            if is_settled(window):
                return window.copy()
            raise

    def _ordered(self, window: exp.Window) -> exp.Expr:
        order, ties = window.args.get("order"), self._ties()
        if order is None or window.args.get("alias") is not None:
            raise Inexpressible
        completed = window.copy()
        completed.set("order", exp.Order(expressions=[*(k.copy() for k in order.expressions), *map(_ascending, ties)]))
        function, spec = _called(window), window.args.get("spec")
        rows = spec is not None and str(spec.args.get("kind") or "").upper() == "ROWS"
        begins = spec is None or str(spec.args.get("start") or "").upper() == "UNBOUNDED"
        bare = isinstance(window.this, exp.Anonymous) and len(window.this.expressions) == 1
        if rows or function in _BY_POSITION or (function in _FIRST and begins and bare):
            return completed
        if spec is not None or not isinstance(window.this, exp.Anonymous):
            raise Inexpressible
        partition = [each.copy() for each in window.args.get("partition_by") or []]
        if function in _LAST and len(window.this.expressions) == 1:  # of all rows with the same keys, the last one
            peers = [*partition, *(key.this.copy() for key in order.expressions)]
            fields = [exp.Alias(this=tie.copy(), alias=f"__{number}") for number, tie in enumerate(ties)]
            fields.append(exp.Alias(this=window.this.expressions[0].copy(), alias="__value"))
            gathered = exp.Window(this=_call("collect_list", _call("struct", *fields)), partition_by=peers)
            last = _call("element_at", _call("array_sort", gathered), exp.Neg(this=exp.Literal.number(1)))
            return exp.Dot(this=last, expression=exp.to_identifier("__value"))
        if function == "nth_value" and len(window.this.expressions) == 2:
            seen = exp.Window(this=_call("count", exp.Literal.number(1)), partition_by=partition, order=order.copy())
            completed.set("spec", _everything())
            reached = exp.GTE(this=seen, expression=exp.Paren(this=window.this.expressions[1].copy()))
            return exp.Case(ifs=[exp.If(this=reached, true=completed)])
        raise Inexpressible

    def _ties(self) -> list[exp.Expr]:
        """Return what distinguishes the rows that a window orders: the groups' keys, or all columns that are read."""
        group = self.query.args.get("group")
        if group is not None:
            if not group.expressions or any(isinstance(key, exp.Literal) for key in group.expressions):
                raise Inexpressible
            return [key.copy() for key in group.expressions]
        named = mentioned(self.query.root())
        return [
            exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(source, quoted=True))
            for source, names in self._sources()
            for name in names
            if named is None or name.lower() in named
        ]

    def _sources(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the relations of the FROM clause that a window sees: their alias and columns."""
        joins = self.query.args.get("joins") or []
        from_ = self.query.args.get("from_")
        seen = [from_.this] if from_ is not None else []
        seen += [join.this for join in joins if str(join.kind or "").upper() not in ("SEMI", "ANTI")]
        for relation in seen:
            alias = relation.args.get("alias")
            if not relation.alias_or_name or (alias is not None and alias.args.get("columns")):
                raise Inexpressible
            bare = relation.copy()
            bare.set("alias", None)
            yield relation.alias_or_name, self._schema(f"SELECT * FROM {text(bare)}").names

    def _fold(self, call: exp.Anonymous) -> None:
        """Add floats up in the order of their values, and leave other sums to Spark unless the order shows in them."""
        if len(call.expressions) != 1 or isinstance(call.expressions[0], exp.Star):
            return
        argument, gather = call.expressions[0], "collect_list"
        if isinstance(argument, exp.Distinct):
            argument, gather = argument.expressions[0], "collect_set"
        name, type_ = call.name.lower(), self._type(argument)
        if type_ == _WIDE and name in (*_MEANS, "try_sum"):
            self._exactly(call, argument)
            return
        if type_ not in _FLOATS and name not in _SPREAD:
            return
        around, gathered = _around(call, _call(gather, exp.cast(argument.copy(), "double")))
        values = text(_call("array_sort", gathered))
        if name in _SPREAD:
            least = 0 if name.endswith("_pop") else 1
            value = _SPREAD[name].format(deviations=_deviations(values), count=f"CAST(size({values}) AS DOUBLE)")
        else:
            least, total = 0, _total(values)
            value = f"{total} / size({values})" if name in _MEANS else total
        _put(around, f"CASE WHEN size({values}) > {least} THEN {value} END")

    def _exactly(self, call: exp.Anonymous, argument: exp.Expr) -> None:
        """Add 64-bit integers up as decimals, where Spark's sum rounds, or is NULL, in one order and not in another."""
        terms: exp.Expr = exp.cast(argument.copy(), "decimal(20,0)")
        counted: exp.Expr = argument.copy()
        if isinstance(call.expressions[0], exp.Distinct):
            terms, counted = exp.Distinct(expressions=[terms]), exp.Distinct(expressions=[counted])
        around, summed = _around(call, _call("sum", terms))
        total, count = text(summed), text(_around(call, _call("count", counted))[1])
        if call.name.lower() in _MEANS:
            _put(around, f"CAST({total} AS DOUBLE) / NULLIF({count}, 0)")
        else:
            _put(around, f"{'TRY_CAST' if call.name.lower() == 'try_sum' else 'CAST'}({total} AS BIGINT)")

    def _type(self, argument: exp.Expr) -> str:
        bare = exp.Select(expressions=[exp.alias_(argument.copy(), "argument", quoted=True)])
        for key in ("from_", "joins", "laterals"):
            found = self.query.args.get(key)
            bare.set(key, [each.copy() for each in found] if isinstance(found, list) else found and found.copy())
        return self._schema(text(bare)).columns[0].type

    def _schema(self, sql: str) -> Schema:
        """Return Spark's schema of a query in the place of this one."""
        named = [text(each) for each in _read_by(sql, in_sight(self.query))]
        asked = f"WITH {', '.join(named)} {sql}" if named else sql
        return self.analyst.schema_of(asked, self.relations, ours=True)


def _around(call: exp.Anonymous, aggregate: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    """Return ``call`` with the FILTER and the OVER that it has, and ``aggregate`` with the same ones."""
    around: exp.Expr = call
    while isinstance(around.parent, exp.Filter | exp.Window) and around.parent.this is around:
        around = around.parent
        outer = around.copy()
        outer.set("this", aggregate)
        aggregate = outer
    return around, aggregate


def _put(place: exp.Expr, value: str) -> None:
    """Put an expression in the place of another one."""
    found = parse(f"SELECT ({value})")
    assert found is not None, value
    place.replace(found.expressions[0])


def _total(values: str) -> str:
    """Return the sum of a sorted array: of each value, in ascending order, times how often it is there."""
    return (
        f"aggregate({values}, named_struct('sum', 0D, 'value', 0D, 'count', 0D), (__a, __v) -> CASE"
        " WHEN __v = __a.value THEN named_struct('sum', __a.sum, 'value', __v, 'count', __a.count + 1)"
        " ELSE named_struct('sum', __a.sum + __a.value * __a.count, 'value', __v, 'count', 1D) END,"
        " __a -> __a.sum + __a.value * __a.count)"
    )


def _deviations(values: str) -> str:
    """Return the sum of the squared deviations from the mean, by Welford's recurrence over a sorted array."""
    mean = "__a.mean + (__v - __a.mean) / (__a.count + 1)"
    return (
        f"aggregate({values}, named_struct('count', 0D, 'mean', 0D, 'sum', 0D), (__a, __v) -> named_struct('count',"
        f" __a.count + 1, 'mean', {mean}, 'sum', __a.sum + (__v - __a.mean) * (__v - ({mean}))), __a -> __a.sum)"
    )


def _read_by(sql: str, in_sight: list[exp.CTE]) -> list[exp.CTE]:
    """Return those common table expressions that a text may name, and those that these may."""
    found: list[exp.CTE] = []
    for each in reversed(in_sight):
        texts = (sql, *map(text, found))
        if any(each.alias.lower() in said.lower() for said in texts):
            found.insert(0, each)
    return found


def _own(query: exp.Expr, kind: type[_E]) -> Iterator[_E]:
    """Yield the nodes of a SELECT's own expressions, not those of queries inside it."""
    for node in query.find_all(kind):
        if node.find_ancestor(exp.Select, exp.SetOperation) is query:
            yield node


def _called(window: exp.Window) -> str:
    function = window.this
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        function = function.this
    return str(function.name).lower()


def _call(function: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=function, expressions=[each.copy() for each in arguments])


def _ascending(key: exp.Expr) -> exp.Ordered:
    return exp.Ordered(this=key.copy(), nulls_first=True)


def _everything() -> exp.WindowSpec:
    return exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING")
