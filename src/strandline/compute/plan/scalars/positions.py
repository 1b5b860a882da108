"""Which windows and lists look at the order of rows, and for which of them no order matters."""

from __future__ import annotations

from sqlglot import exp

from strandline.algebra.scalar import text
from strandline.compute.plan.sql.functions import CHOOSING, LISTING, POSITIONAL
from strandline.compute.plan.sql.trees import replaced


def is_positional(window: exp.Window) -> bool:
    """Tell whether a window's value depends on the order of rows that its ORDER BY does not tell apart."""
    return _counts_rows(window) or of_window(window) in POSITIONAL


def is_settled(window: exp.Window) -> bool:
    """Tell whether a window has one value in any order of the rows that its ORDER BY does not tell apart.

    It has if it gives a value of the keys, of PARTITION BY and ORDER BY, out of a frame that those rows have in common.

    >>> from strandline.compute.plan.sql.dialect import parse
    >>> over = ("(x) OVER (PARTITION BY x)", "(x + 1, true) OVER (ORDER BY x)", "(y) OVER (PARTITION BY x ORDER BY z)")
    >>> [is_settled(parse(f"SELECT first_value{each}").expressions[0]) for each in over]
    [True, True, False]
    """
    called = _called(window)
    if of_window(window) not in CHOOSING or _counts_rows(window) or window.args.get("alias") is not None:
        return False
    order = window.args.get("order")
    ordered = [] if order is None else [key.this for key in order.expressions]
    keys = {text(key) for key in (*(window.args.get("partition_by") or []), *ordered)}
    others = (replaced(each, lambda part: exp.Null() if text(part) in keys else part) for each in called.expressions)
    return all(each.find(exp.Column, exp.Query) is None for each in others)


def is_open_list(node: exp.Expr) -> bool:
    """Tell whether ``node`` is a `listagg` whose order leaves different values in any order.

    With DISTINCT it is ordered by the values themselves, else Spark refuses it.

    >>> from strandline.compute.plan.sql.dialect import parse
    >>> lists = ("listagg(DISTINCT b)", "string_agg(b, ',')", "listagg(b)")
    >>> orders = ("b", "a, CAST(b AS STRING)", "a")
    >>> texts = [f"{each} WITHIN GROUP (ORDER BY {order})" for each, order in zip(lists, orders)]
    >>> [is_open_list(parse(f"SELECT {each}").expressions[0]) for each in texts]
    [False, False, True]
    """
    if not isinstance(node, exp.WithinGroup) or node.this.name.lower() not in LISTING:
        return False
    value = node.this.expressions[0]
    keys = {text(key.this) for key in node.expression.expressions}
    return not isinstance(value, exp.Distinct) and keys.isdisjoint(
        (text(value), text(exp.cast(value.copy(), "string")))
    )


def _counts_rows(window: exp.Window) -> bool:
    """Tell whether the frame of ``window`` counts ROWS: that of all rows does not, since no order matters to it."""
    frame = window.args.get("spec")
    if frame is None or (frame.args.get("kind") or "").upper() != "ROWS":
        return False
    ends = [(frame.args.get(edge), frame.args.get(f"{edge}_side")) for edge in ("start", "end")]
    return ends != [("UNBOUNDED", "PRECEDING"), ("UNBOUNDED", "FOLLOWING")]


def of_window(window: exp.Window) -> str:
    """Return the name of the function that a window calls, lower-case."""
    function = _called(window)
    return str(function.name).lower() if isinstance(function, exp.Anonymous) else ""


def _called(window: exp.Window) -> exp.Expr:
    function: exp.Expr = window.this
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        function = function.this
    return function
