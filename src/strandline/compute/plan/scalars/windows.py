"""Orders made definite (law D): rows that a window's ORDER BY does not tell apart are ordered by all their columns.

What is listed WITHIN GROUP is ordered by itself in the end: equal texts may come in any order.

A function that looks at positions needs that order.  Where the frame ends with the peers of the current row (RANGE, the
default), the order must not shrink the frame: the last of all peers is asked for, not the row itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from strandline.algebra.first import First
from strandline.algebra.scalar import call, case, column, operand, text
from strandline.algebra.schema import RESERVED
from strandline.compute.plan.scalars.order import ascending, first_rows, number_of
from strandline.compute.plan.scalars.positions import is_open_list, is_positional, is_settled, of_window
from strandline.compute.plan.scalars.scope import Unplanned
from strandline.compute.plan.sql.trees import conjuncts, replaced

_FIRST: Final = ("any_value", "first", "first_value")
_LAST: Final = ("last", "last_value")
_UNFRAMED: Final = ("lag", "lead", "ntile", "row_number")
_RANKS: Final = ("dense_rank", "rank", "row_number")
_VALUE: Final = f"{RESERVED}value"
_BEGIN: Final = ("UNBOUNDED", "PRECEDING")
_HERE: Final = ("CURRENT ROW", "")
_END: Final = ("UNBOUNDED", "FOLLOWING")
_WHOLE: Final = exp.WindowSpec(
    kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
)


def complete_windows(expression: exp.Expr, columns: Iterable[str]) -> exp.Expr:
    """Return ``expression`` with the windows that look at positions ordered by all ``columns`` in the end."""
    names = list(columns)

    def complete(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        if node.args.get("alias") is not None:
            raise Unplanned("a named window")
        if not is_positional(node):
            return node
        try:
            return _completed(node, names)
        except Unplanned:
            if is_settled(node):
                return node
            raise

    return replaced(expression, complete)


def complete_lists(expression: exp.Expr) -> exp.Expr:
    """Return ``expression`` with what `listagg` lists ordered by its text in the end."""

    def complete(node: exp.Expr) -> exp.Expr:
        if not is_open_list(node):
            return node
        completed = node.copy()
        tie = exp.Ordered(this=exp.cast(node.this.expressions[0].copy(), "string"), nulls_first=True)
        completed.expression.append("expressions", tie)
        return completed

    return replaced(expression, complete)


def first_of_each(condition: exp.Expr, values: Iterable[exp.Expr]) -> tuple[First | None, frozenset[str]]:
    """Return which rows of each partition a SELECT of ``values`` looks at under QUALIFY ``condition``; the partition.

    A row's number and rank depend on the rows before it alone.  So if the number has a bound, and the SELECT has no
    other windows than numbers and ranks in one order, the first rows are all that it looks at.
    """
    windows = [window for each in (condition, *values) for window in each.find_all(exp.Window)]
    bounds = [bound for each in conjuncts(condition) if (bound := _bound(each.unnest())) is not None]
    over = {tuple(tuple(map(text, each)) for each in (_partition(one), _order(one))) for one in windows}
    ranked = all(of_window(one) in _RANKS and one.args.get("spec") is None for one in windows)
    if not bounds or len(over) > 1 or not ranked:
        return None, frozenset()
    partition, order = _partition(windows[0]), _order(windows[0])
    if not order or not all(isinstance(each, exp.Column) for each in partition):
        return None, frozenset()
    return first_rows(order[0], min(bounds)), frozenset(each.name for each in partition)


def _bound(condition: exp.Expr) -> int | None:
    """Return how many of the first rows may fulfil ``condition``; None: it does not say."""
    number = number_of(condition.expression) if isinstance(condition, exp.EQ | exp.LT | exp.LTE) else None
    window = condition.this
    numbered = isinstance(window, exp.Window) and of_window(window) in ("row_number", "rank")
    return number if numbered else None


def _partition(window: exp.Window) -> list[exp.Expr]:
    return list(window.args.get("partition_by") or [])


def _order(window: exp.Window) -> list[exp.Expr]:
    order = window.args.get("order")
    return [] if order is None else list(order.expressions)


def _completed(window: exp.Window, names: list[str]) -> exp.Expr:
    order = window.args.get("order")
    if order is None:
        raise Unplanned("a window over positions without ORDER BY")
    completed = window.copy()
    completed.set("order", exp.Order(expressions=[*(key.copy() for key in order.expressions), *ascending(names)]))
    function, (kind, begin, end) = of_window(window), _frame(window)
    if kind == "ROWS" or function in _UNFRAMED:
        return completed
    # The first row of a frame that begins with the partition is in it, however the frame ends; so is the last row of
    # one that ends with it.  The first or last that is not NULL may be any row, and depends on both ends.
    plain = isinstance(window.this, exp.Anonymous) and len(window.this.expressions) == 1
    if function in _FIRST and plain and begin == _BEGIN and end in (_HERE, _END):
        return completed
    if (begin, end) == (_BEGIN, _END) or (function in _LAST and plain and begin == _HERE and end == _END):
        completed.set("spec", _WHOLE.copy())
        return completed
    if (begin, end) == (_BEGIN, _HERE):
        if function in _LAST:
            return _last_peer(window, names)
        if function == "nth_value":
            return _nth(window, completed)
    raise Unplanned(f"{function} over a RANGE of peers")


def _frame(window: exp.Window) -> tuple[str, tuple[str, str], tuple[str, str]]:
    spec = window.args.get("spec")
    if spec is None:
        return "RANGE", _BEGIN, _HERE
    ends = [tuple(str(spec.args.get(key) or "").upper() for key in (edge, f"{edge}_side")) for edge in ("start", "end")]
    begin, end = ((word, side) for word, side in ends)
    return (spec.args.get("kind") or "").upper(), begin, end if end != ("", "") else _HERE


def _last_peer(window: exp.Window, names: list[str]) -> exp.Expr:
    """Return the value at the greatest of the current row's peers, which are the rows with the same ORDER BY keys."""
    function = window.this
    if not isinstance(function, exp.Anonymous) or len(function.expressions) != 1:
        raise Unplanned("the last of a RANGE of peers that is not NULL")
    entries = [exp.Alias(this=column(name), alias=f"{RESERVED}{n}") for n, name in enumerate(names)]
    entries.append(exp.Alias(this=function.expressions[0].copy(), alias=_VALUE))
    peers = [key.this.copy() for key in window.args["order"].expressions]
    partition = [each.copy() for each in window.args.get("partition_by") or []]
    greatest = exp.Window(this=call("max", call("struct", *entries)), partition_by=[*partition, *peers])
    return exp.Dot(this=operand(greatest), expression=exp.to_identifier(_VALUE))


def _nth(window: exp.Window, completed: exp.Window) -> exp.Expr:
    """Return the nth row of the whole partition where the frame, which begins with it, has come so far."""
    function, ignoring = completed.this, isinstance(completed.this, exp.IgnoreNulls)
    nth = function.this if isinstance(function, exp.IgnoreNulls | exp.RespectNulls) else function
    if not isinstance(nth, exp.Anonymous) or len(nth.expressions) != 2:
        raise Unplanned("nth_value in another form")
    counted = window.copy()
    counted.set("this", call("count", nth.expressions[0] if ignoring else exp.Literal.number(1)))
    completed.set("spec", _WHOLE.copy())
    return case(exp.GTE(this=operand(counted), expression=operand(nth.expressions[1])), completed)
