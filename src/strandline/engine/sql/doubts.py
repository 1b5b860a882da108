"""Finds in Spark's analysed plan of a query what may leave it without one answer (`algebra.doubts`).

The text alone cannot tell: ``user`` is a column or a function, and ``at <= 'now'`` becomes a cast only in the analysis.

Which texts become a time of the clock (Spark 4.3, `SpecialDatetimeValues` of the optimizer and `stringToTimestamp`):
a cast of a constant text to DATE, TIMESTAMP or TIMESTAMP_NTZ takes now, today, yesterday and tomorrow, in any case,
with spaces around them, and all but now with a zone behind them.  A text without a date ('12:30') is a time of today.
In a column the four words are no times: there such a cast fails, and TRY_CAST gives NULL.

Trap: each question to the JVM takes a fraction of a millisecond.  So the plan is walked only where its JSON, which is
one question, shows something to look for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from strandline.algebra.doubts import OF_CLOCK, Doubt, DoubtKind, of_clock
from strandline.errors import Position

_CALLS: Final = frozenset({"CurrentDate", "CurrentTime", "CurrentTimestamp", "CurrentUser"})
_CHOOSING: Final = {"Deduplicate": "DISTINCT", "Distinct": "DISTINCT", "Except": "EXCEPT", "Intersect": "INTERSECT"}
_CUTS: Final = {"GlobalLimit": "LIMIT", "Offset": "OFFSET", "Tail": "LIMIT"}
_RANKS: Final = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Window functions that treat rows with equal ORDER BY values alike, though Spark gives them a frame of ROWS."""
_SUBQUERIES: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")
_HOPEFUL: Final = re.compile(rf'"value":"(?:\\[a-z0-9]+| )*{OF_CLOCK}', re.IGNORECASE)
_ORDERING: Final = re.compile(rf'\.(?:WindowExpression|{"|".join(_CUTS)})"')
_CALLED: Final = re.compile(rf'\.(?:{"|".join(sorted(_CALLS))})"')
_COLLATED: Final = re.compile(r"COLLATE (?!UTF8_BINARY\b)(\w+)", re.IGNORECASE)
_REPLACED: Final = frozenset({"to_date", "to_timestamp"})
"""Functions that are casts if they are given no format, by Spark's name of the node; so are those with TRY or LTZ."""


def doubts(query: DataFrame, json: str, place: Callable[[int], Position | None], *, ordering: bool) -> Iterator[Doubt]:
    """Yield what is doubtful in ``query``; ``place`` says where a character of its text is.

    ``json``: its analysed plan (`reach.analysed_json`).
    ``ordering``: also what may only lean on the order of rows.
    """
    plan = query._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public call gives an analysed plan
    jvm: Any = query.sparkSession._jvm  # noqa: SLF001 - nor is the rule a public one
    rule = jvm.org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues
    if (
        "collat" in json.lower()
        or any(each.search(json) for each in (_CALLED, _HOPEFUL))
        or (ordering and _ORDERING.search(json))
        or not plan.fastEquals(rule.apply(plan))
    ):
        yield from _Walk(place).plan(plan)


@dataclass(frozen=True, slots=True)
class _Walk:
    place: Callable[[int], Position | None]

    def plan(self, node: Any) -> Iterator[Doubt]:
        """Yield the doubts of a plan."""
        name = node.nodeName()
        if name == "View":
            return  # a relation that the query reads
        children = list(_each(node.children()))
        if name in _CUTS:
            yield Doubt(DoubtKind.CUT, _CUTS[name], self._place(node))
            yield from self._chosen(_CUTS[name], node, _each(node.output()))
        elif name in _CHOOSING:
            yield from self._chosen(_CHOOSING[name], node, _each(node.output()))
        tied = next(filter(None, map(_collation, _each(_below(node).output()))), "") if name == "Window" else ""
        for each in _each(node.expressions()):
            yield from self._expression(each, tied)
        if name == "Aggregate":
            yield from self._groups(node.aggregateExpressions())
        for child in children:
            yield from self.plan(child)

    def _expression(self, node: Any, tied: str) -> Iterator[Doubt]:
        """Yield the doubts of an expression; ``tied``: by this collation rows may be equal that are not."""
        name = node.nodeName()
        if name in _CALLS:
            yield Doubt(DoubtKind.CALL, node.prettyName(), self._place(node))
        elif name == "Cast":
            yield from self._cast(node)
        elif name == "WindowExpression":
            yield self._window(node, tied)
        elif name == "AggregateExpression":
            yield from self._chosen(node.aggregateFunction().prettyName(), node, [node])
        elif name in _SUBQUERIES:
            yield from self.plan(node.plan())
        for child in [node.replacement()] if name in _REPLACED else _each(node.children()):
            yield from self._expression(child, tied)

    def _cast(self, node: Any) -> Iterator[Doubt]:
        child = node.child()
        if node.dataType().simpleString() in _TIMES and child.foldable() and child.dataType().typeName() == "string":
            value = str(child.eval(None))
            if of_clock(value):
                yield Doubt(DoubtKind.CLOCK, value, self._place(child))

    def _window(self, node: Any, collation: str) -> Doubt:
        called, frame = node.windowFunction(), node.windowSpec().frameSpecification()
        if called.nodeName() == "AggregateExpression":
            called = called.aggregateFunction()
        rows = called.nodeName() not in _RANKS and frame.frameType().toString() == "RowFrame"
        return Doubt(DoubtKind.WINDOW, called.prettyName(), self._place(node), rows, collation)

    def _groups(self, outputs: Any) -> Iterator[Doubt]:
        """Yield the values of groups of which each row may give another: those outside of aggregates."""
        for each in _each(outputs):
            if each.nodeName() != "AggregateExpression":
                yield from self._chosen("GROUP BY", each, [each])
                yield from self._groups(each.children())

    def _chosen(self, name: str, at: Any, values: Iterable[Any]) -> Iterator[Doubt]:
        """Yield the first of ``values`` that has equal texts which differ: ``name`` keeps one of them."""
        collation = next(filter(None, map(_collation, values)), "")
        if collation:
            yield Doubt(DoubtKind.COLLATION, name, self._place(at), collation=collation)

    def _place(self, node: Any) -> Position | None:
        start = node.origin().startIndex()
        return self.place(start.get()) if start.isDefined() else None


def _each(sequence: Any) -> Iterator[Any]:
    """Yield what a sequence of Scala's holds."""
    return map(sequence.apply, range(sequence.size()))


def _below(window: Any) -> Any:
    """Return what gives the rows of ``window``: Spark puts a projection of its own between, of what windows need."""
    node = window
    while node.nodeName() == "Window":
        node = node.child()
    return node.child() if node.nodeName() == "Project" else node


def _collation(expression: Any) -> str:
    """Return the collation of a text in the value of ``expression``; empty if equal texts in it are the same."""
    found = _COLLATED.search(expression.dataType().sql())
    return "" if found is None else found[1]
