"""Law D at the door: refuse a query whose value is not a function of its inputs.

The lists are `functions.INDEFINITE` and `definite_functions.DEFINITE`; here is where each entry counts: anywhere,
except an array that is sorted at once, a list whose order is given, and a positional function inside a window (the
planner completes both orders).
What the text cannot tell, Spark's analysis of it tells (`algebra.doubts`): whether ``user`` is a column, whether a text
becomes a time, what a collation calls equal.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from typing import Final, NoReturn

from sqlglot import exp

from strandline.algebra.doubts import Doubt, DoubtKind, of_clock
from strandline.compute.plan.scalars.definite_functions import DEFINITE, GRAMMAR
from strandline.compute.plan.scalars.order import is_cut_by_row
from strandline.compute.plan.scalars.positions import is_open_list, is_positional, is_settled, of_window
from strandline.compute.plan.sql.dialect import Word, position, position_of, words
from strandline.compute.plan.sql.functions import (
    FOLDED,
    GATHERING,
    INDEFINITE,
    LISTING,
    ORDERED_BY_PARENT,
    POSITIONAL,
)
from strandline.errors import DefinitionError, Position

_BARE: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentTime: "current_time",
    exp.CurrentUser: "current_user",
}
"""What sqlglot has a class for although no parenthesis follows the name."""

_SYNTAX: Final = (
    exp.And,
    exp.Case,
    exp.Cast,
    exp.Collate,
    exp.Extract,
    exp.If,
    exp.JSONExtract,
    exp.Or,
    exp.Overlay,
    exp.RegexpLike,
    exp.StrPosition,
    exp.Substring,
    exp.Transform,
    exp.Trim,
)
"""What sqlglot has a class for that counts as a function with it: all of them definite."""

_BEFORE_PARENTHESIS: Final = frozenset(
    """
    aggregate all and any array as between by case char character cluster cross cube dec decimal distinct distribute
    else except exists extend filter for from full group having in include inner intersect is join lateral left like
    limit map minus natural not numeric offset on or order outer over partition pivot qualify recursive right rollup
    select semi set sets sort string struct table then union unpivot using values varchar when where window with
    """.split()  # noqa: SIM905 - words
)
"""Words of SQL that a parenthesis may follow."""

_TIMES: Final = frozenset(("date", "timestamp", "timestamp_ltz", "timestamp_ntz"))
_NAMED: Final = re.compile(r"[a-z]{2}", re.IGNORECASE)
_TIES: Final = "ties are broken by the order that rows come in"
_HIDDEN: Final = f"{_TIES}, and the query around it has a form that hides which rows; move it into a subquery in FROM"
_UNREAD: Final = (
    f"{_TIES}, and only Spark reads this text, so we cannot break them by the whole row; write plain SELECT"
)
_LISTED: Final = DEFINITE | frozenset(GRAMMAR)
_UNLISTED: Final = "is not known to have a definite value in a view"
_UNKNOWN: Final = (
    "if it is yours, configure a deterministic udf of this name (functions); "
    "else store its value in a column of the source"
)


def refuse_indefinite(query: exp.Expr | None, sql: str, functions: frozenset[str] = frozenset()) -> None:
    """Raise `DefinitionError`, which names the function and its place, if ``sql``, read as ``query``, is indefinite.

    ``functions``: the definite ones that are not Spark's.
    """
    _refuse_clock_literals(sql)
    if query is None:
        _refuse_by_token(sql, functions)
        return
    for node in query.walk(prune=lambda node: isinstance(node, exp.Hint)):
        if isinstance(node, exp.QueryTransform):
            _refuse_script(position_of(node, sql))
        name = _name(node)
        if name is None:
            continue
        if name in INDEFINITE:
            if not _excused(node, name):
                _refuse(name, _place(node, name, sql))
        elif name.removesuffix("()") not in _LISTED | functions:
            _refuse_unlisted(name, _place(node, name, sql), functions)
    sample = query.find(exp.TableSample)
    if sample is not None:
        _refuse_sample(position_of(sample.parent or sample, sql))


def _name(node: exp.Expr) -> str | None:
    """Return the function that ``node`` calls, lower-case; with ``()`` if that it has no arguments matters."""
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return f"{name}()" if not node.expressions and f"{name}()" in INDEFINITE else name
    if isinstance(node, exp.Func) and not isinstance(node, _SYNTAX):
        return _BARE.get(type(node)) or node.sql_name().lower()
    return _BARE.get(type(node))


def _excused(node: exp.Expr, name: str) -> bool:
    parent = node.parent
    while isinstance(parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node, parent = parent, parent.parent
    if name in POSITIONAL:
        return isinstance(parent, exp.Window) and parent.this is node
    if name in LISTING:
        return isinstance(parent, exp.WithinGroup) and parent.this is node
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


def _refuse_by_token(sql: str, functions: frozenset[str]) -> None:
    """The same for text that only Spark can read: a call is a word before a parenthesis that is no word of SQL."""
    listed = _LISTED | functions
    tokens = words(sql)  # a hint is one of them
    for before, word, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        name, place = word.text.lower(), position(sql, word.start)
        called = following is not None and following.text == "(" and word.text[:1].isidentifier()
        if word.literal:
            if before is not None and before.text.lower() == "using":
                _refuse_script(place)
        elif called and name in INDEFINITE:
            _refuse(name, place)
        elif name == "tablesample":
            _refuse_sample(place)
        elif called and name not in listed and _last_word(name) not in _BEFORE_PARENTHESIS and not _names(before):
            _refuse_unlisted(name, place, functions)


def _last_word(name: str) -> str:
    return name.rpartition(" ")[2]  # `GROUP BY` is one token


def _names(before: Word | None) -> bool:
    """Tell whether the word after ``before`` is a name that is given here: of a column, or of a query."""
    return before is not None and before.text.lower() in {"as", "with", "recursive"}


def _refuse(name: str, place: Position | None) -> NoReturn:
    reason, instead = INDEFINITE[name]
    name = name.removesuffix("()")
    raise DefinitionError(f"{name} has no definite value in a view: {reason}; {instead} instead", place)


def _refuse_unlisted(name: str, place: Position | None, functions: frozenset[str]) -> NoReturn:
    near = difflib.get_close_matches(name, _LISTED | functions, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else _UNKNOWN
    raise DefinitionError(f"the function {name} {_UNLISTED}; {hint}", place)


def _refuse_sample(place: Position | None) -> NoReturn:
    reason = "it takes other rows each time; filter by a hash of the row instead"
    raise DefinitionError(f"TABLESAMPLE has no definite value in a view: {reason}", place)


def _refuse_script(place: Position | None) -> NoReturn:
    raise DefinitionError("TRANSFORM … USING has no definite value in a view: a script may do anything", place)


def _refuse_clock_literals(sql: str) -> None:
    """Refuse ``TIMESTAMP 'now'``: Spark's parser puts the time in its place, so no analysis shows it."""
    tokens = words(sql)
    for word, following in itertools.pairwise(tokens):
        typed = following.literal and not word.literal and word.text.lower() in _TIMES
        if typed and of_clock(following.text):
            _refuse_clock(following.text.strip(), position(sql, following.start))


def refuse_doubts(doubts: Iterable[Doubt]) -> None:
    """Raise `DefinitionError` for the first of ``doubts`` that leaves a query of any form without one answer."""
    for doubt in doubts:
        match doubt.kind:
            case DoubtKind.CALL:
                _refuse(doubt.name, doubt.place)
            case DoubtKind.CLOCK:
                _refuse_clock(doubt.name.strip(), doubt.place)
            case DoubtKind.COLLATION:
                _refuse_collation(doubt.name, doubt)
            case DoubtKind.WINDOW if doubt.collation and _by_position(doubt):
                _refuse_collation(f"{doubt.name} OVER", doubt)


def refuse_order(doubts: Iterable[Doubt]) -> None:
    """Raise `DefinitionError` if a query that only Spark reads lets the order of rows decide what it gives."""
    for doubt in doubts:
        if doubt.kind is DoubtKind.CUT:
            _refuse_order(doubt.name, doubt.place, _UNREAD)
        if doubt.kind is DoubtKind.WINDOW and _by_position(doubt):
            _refuse_order(f"{doubt.name} OVER", doubt.place, _UNREAD)


def _by_position(window: Doubt) -> bool:
    return window.rows or window.name in POSITIONAL


def _refuse_clock(said: str, place: Position | None) -> NoReturn:
    if _NAMED.match(said):
        reason = f"Spark reads it as a time of the clock, at which the view is computed; {INDEFINITE['now'][1]} instead"
    else:
        reason = "it has no date, so that Spark takes the day on which the view is computed; write the date too"
    raise DefinitionError(f"'{said}' has no definite value in a view: {reason}", place)


def _refuse_collation(what: str, doubt: Doubt) -> NoReturn:
    raise DefinitionError(
        f"{what} has no definite value over texts that {doubt.collation} compares: it keeps one of several texts "
        "that are equal by this collation, and which one depends on the order that rows come in; compute it over a "
        "text that is the same for all of them, as lower(…), or over CAST(… AS STRING)",
        doubt.place,
    )


def refuse_unordered(query: exp.Expr, sql: str) -> None:
    """Raise `DefinitionError` if ``query``, which will run as it is, lets the order of rows decide what it gives.

    Where the planner understands a query it completes such orders itself (`order.top`, `windows.complete_windows`), and
    so it does for a LIMIT inside it (`order.complete_cuts`).
    """
    for node in query.walk():
        if isinstance(node, exp.Limit | exp.Offset | exp.Fetch) and not is_cut_by_row(node.parent):
            _refuse_order("LIMIT", position_of(node, sql), _HIDDEN)
        if isinstance(node, exp.Window) and is_positional(node) and not is_settled(node):
            _refuse_order(f"{of_window(node) or node.this.name} OVER", position_of(node, sql), _why(node))
        if is_open_list(node):
            _refuse_order(node.this.name.lower(), position_of(node, sql), _HIDDEN)


def _why(window: exp.Window) -> str:
    """Return why the order of the rows of ``window`` is not completed, and what to write."""
    if window.args.get("alias") is not None:
        return "it uses a window that WINDOW names, whose order we do not complete; write the window in OVER (…)"
    if window.args.get("order") is None:
        return "no ORDER BY says which row comes first; write one in OVER (…)"
    ranged = (window.args.get("spec") or exp.WindowSpec(kind="RANGE")).args.get("kind", "").upper() != "ROWS"
    if ranged and (isinstance(window.this, exp.IgnoreNulls) or window.args.get("spec") is not None):
        return (
            "its frame is a RANGE, in which rows with equal ORDER BY values come in any order; "
            "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or other ROWS: then the whole row breaks ties"
        )
    return _HIDDEN


def inexact(query: exp.Expr | None) -> list[str]:
    """Return a note if ``query``, which will run as it is, may add up floats in an order that is Spark's to choose."""
    calls = () if query is None else query.find_all(exp.Anonymous)
    found = sorted({call.name.lower() for call in calls if call.name.lower() in FOLDED})
    if query is not None and not found:
        return []
    return [
        f"{', '.join(found) or 'an aggregate'} over floats, if any, is Spark's here: its last bits may differ by run"
    ]


def _refuse_order(what: str, place: Position | None, reason: str) -> NoReturn:
    raise DefinitionError(f"{what} has no definite value here: {reason}", place)
