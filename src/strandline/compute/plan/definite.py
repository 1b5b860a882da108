"""Law D at the door: refuse a query whose value is not a function of its inputs.

The list is `functions.INDEFINITE`; here is where each entry counts: anywhere, except an array that is sorted at once,
and a positional function inside a window (the planner completes the window's order).

Source: design page "the map" (decision 7, law D).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from sqlglot import exp

from strandline.compute.plan.dialect import position, position_of, words
from strandline.compute.plan.functions import FOLDED, GATHERING, INDEFINITE, ORDERED_BY_PARENT, POSITIONAL
from strandline.errors import DefinitionError, Position

_BARE: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentTime: "current_time",
    exp.CurrentUser: "current_user",
    exp.GroupConcat: "listagg",
}
"""What sqlglot has a class for although no parenthesis follows the name (or special syntax does)."""


def refuse_indefinite(query: exp.Expr | None, sql: str) -> None:
    """Raise `DefinitionError`, which names the function and its place, if ``sql``, read as ``query``, is indefinite."""
    if query is None:
        _refuse_by_token(sql)
        return
    for node in query.walk():
        name = _name(node)
        if name is not None and name in INDEFINITE and not _excused(node, name):
            _refuse(name, _place(node, name, sql))
    sample = query.find(exp.TableSample)
    if sample is not None:
        message = (
            "TABLESAMPLE has no definite value: it takes other rows each time; filter by a hash of the row instead"
        )
        raise DefinitionError(message, position_of(sample.parent or sample, sql))


def _name(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return f"{name}()" if not node.expressions and f"{name}()" in INDEFINITE else name
    if isinstance(node, exp.Column) and not node.table and not node.this.args.get("quoted"):
        # `localtimestamp` and the like need no parenthesis; sqlglot takes those it does not know for columns.
        return node.name.lower() if node.name.lower() in ("localtimestamp", "session_user", "user") else None
    return _BARE.get(type(node))


def _excused(node: exp.Expr, name: str) -> bool:
    parent = node.parent
    while isinstance(parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node, parent = parent, parent.parent
    if name in POSITIONAL:
        return isinstance(parent, exp.Window) and parent.this is node
    if name not in GATHERING:
        return False
    if isinstance(parent, exp.Window) and parent.this is node:
        parent = parent.parent
    return (
        isinstance(parent, exp.Anonymous)
        and parent.name.lower() in ORDERED_BY_PARENT
        and not any(isinstance(argument, exp.Lambda) for argument in parent.expressions)
    )


def _place(node: exp.Expr, name: str, sql: str) -> Position | None:
    if "start" in node.meta:
        return position(sql, int(node.meta["start"]))
    for word in words(sql):
        if word.text.lower() == name and not word.literal:
            return position(sql, word.start)
    return position_of(node, sql)


def _refuse_by_token(sql: str) -> None:
    """The same for text that only Spark can read: a name on the list before a parenthesis."""
    for word, following in pairwise(words(sql)):
        name = word.text.lower()
        if following.text == "(" and name in INDEFINITE and not word.literal:
            _refuse(name, position(sql, word.start))


def _refuse(name: str, place: Position | None) -> None:
    reason, instead = INDEFINITE[name]
    name = name.removesuffix("()")
    raise DefinitionError(f"{name} has no definite value in a view: {reason}; {instead} instead", place)


def refuse_unordered(query: exp.Expr | None, sql: str) -> None:
    """Raise `DefinitionError` if ``query``, which will run as it is, lets the order of rows decide what it gives.

    Where the planner understands a query it completes such orders itself (`order.top`, `folds.complete_windows`).
    """
    if query is None:
        for word in words(sql):
            if word.text.upper() in ("LIMIT", "OFFSET") and not word.literal:
                _refuse_order(word.text.upper(), position(sql, word.start))
        return
    for node in query.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch):
            _refuse_order("LIMIT", position_of(node, sql))
        if isinstance(node, exp.Window) and is_positional(node):
            _refuse_order(f"{node.this.name or 'this'} OVER", position_of(node, sql))


def inexact(query: exp.Expr | None) -> list[str]:
    """Return a note if ``query``, which will run as it is, may add up floats in an order that is Spark's to choose."""
    calls = () if query is None else query.find_all(exp.Anonymous)
    found = sorted({call.name.lower() for call in calls if call.name.lower() in FOLDED})
    if query is not None and not found:
        return []
    return [
        f"{', '.join(found) or 'an aggregate'} over floats, if any, is Spark's here: its last bits may differ by run"
    ]


def is_positional(window: exp.Window) -> bool:
    """Tell whether a window's value depends on the order of rows that its ORDER BY does not tell apart."""
    frame = window.args.get("spec")
    rows = frame is not None and (frame.args.get("kind") or "").upper() == "ROWS"
    return rows or of_window(window) in POSITIONAL


def of_window(window: exp.Window) -> str:
    """Return the name of the function that a window calls, lower-case."""
    function = window.this
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        function = function.this
    return str(function.name).lower() if isinstance(function, exp.Anonymous) else ""


def _refuse_order(what: str, place: Position | None) -> None:
    reason = "ties are broken by the order that rows come in, and the query around it has a form that hides which rows"
    raise DefinitionError(f"{what} has no definite value here: {reason}; move it into a subquery in FROM", place)
