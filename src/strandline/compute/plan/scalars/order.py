"""Orders made definite (law D): ORDER BY … LIMIT, windows, and lists WITHIN GROUP.

ORDER BY … LIMIT is a top-k over the plan of what it orders (`top`).  Rows that an ORDER BY does not tell apart are
ordered by all their columns: the ties of a LIMIT are broken by the whole row, and so are those of a window whose
function looks at positions.  A list WITHIN GROUP is ordered by its own texts in the end: equal texts may come in any
order.  For all other windows and lists no order matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import First, Order
from strandline.algebra.scalar import Scalar, call, case, column, number, operand, text
from strandline.algebra.schema import RESERVED, Schema
from strandline.compute.plan.scalars.context import Analyst, Context, Planned, Unplanned, names, renamed, select
from strandline.compute.plan.sql import CHOOSING, LISTING, POSITIONAL, conjuncts, parse, question_marks, replaced, words
from strandline.errors import DefinitionError

_NO_RULE: Final = "OFFSET has no maintenance rule"
_CUTS: Final = frozenset({"LIMIT", "OFFSET"})
_ORDERED: Final = f"{RESERVED}ordered"


def output_of(key: exp.Expr, outputs: Sequence[tuple[str | None, str]]) -> str | None:
    """Return the output column that an ORDER BY key means by its position or name, if it does."""
    if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
        position = int(key.name)
        return outputs[position - 1][1] if 1 <= position <= len(outputs) else None
    if isinstance(key, exp.Column) and not key.table:
        found = [column for name, column in outputs if name is not None and name.lower() == key.name.lower()]
        return found[0] if len(set(found)) == 1 else None
    return None


def is_limited(query: exp.Expr) -> bool:
    """Tell whether ``query`` keeps only some of its rows by position."""
    return any(query.args.get(key) is not None for key in ("limit", "offset"))


def refuse_order_within(inner: exp.Expr | None) -> None:
    """Raise `DefinitionError` if ``inner``, cut off by a LIMIT without ORDER BY, has an order that Spark may keep."""
    if inner is not None and inner.find(exp.Order) is not None:
        raise DefinitionError(
            "LIMIT has no definite value here: it has no ORDER BY of its own, and that of the query inside it need not "
            "hold outside; write ORDER BY beside LIMIT"
        )


def complete_cuts(query: exp.Expr) -> None:
    """Break the ties of each LIMIT inside ``query`` by all outputs of what it cuts off, in place."""
    for cut in query.find_all(exp.Select, exp.SetOperation):
        width = _width(cut)
        if cut is query or width is None or not is_limited(cut) or is_cut_by_row(cut):
            continue
        order = cut.args.get("order")
        if order is None:
            refuse_order_within(cut.args.get("from_") if isinstance(cut, exp.Select) else cut)
        ties = [exp.Ordered(this=number(n + 1), nulls_first=True) for n in range(width)]
        cut.set("order", exp.Order(expressions=[*(order.expressions if order is not None else ()), *ties]))
    show_keys(query)


def show_keys(query: exp.Expr) -> bool:
    """Let each LIMIT in a subquery of ``query`` cut off rows that show the keys of their order, in place.

    Spark sorts by a column that is no output, takes the column away, and numbers the rows of each outer row after that,
    in no order: a correlated LIMIT keeps any rows.  So the keys become outputs inside, and are left out around it.
    Returns whether there were such keys.

    >>> from strandline.compute.plan.sql import parse
    >>> def shown(subquery):
    ...     query = parse(f"SELECT ({subquery}) FROM t")
    ...     return text(query.expressions[0].this) if show_keys(query) else None
    >>> shown("SELECT a FROM u WHERE u.k = t.k ORDER BY u.id DESC LIMIT 1")
    'SELECT `a` FROM (SELECT a, u.id AS `__key_1` FROM u WHERE u.k = t.k ORDER BY 2 DESC LIMIT 1) AS `__cut`'
    >>> shown("SELECT a FROM u WHERE u.k = t.k ORDER BY a, 1 LIMIT 1")
    >>> shown("SELECT * FROM u WHERE t.k ORDER BY i LIMIT 1")
    'SELECT * EXCEPT (`__key_1`) FROM (SELECT *, i AS `__key_1` FROM u WHERE t.k ORDER BY `__key_1` LIMIT 1) AS `__cut`'
    """
    found = False
    for cut in list(query.find_all(exp.Select)):
        keys = _hidden(cut) if cut is not query and is_limited(cut) and _may_be_correlated(cut) else []
        if keys:
            cut.replace(_shown(cut, keys))
            found = True
    return found


def cut_in_order(sql: str, relations: Mapping[str, Schema], analyst: Analyst) -> str:
    """Return the query ``sql`` with each LIMIT in a subquery over rows that show the keys of their order.

    Plain Spark would keep any rows (`show_keys`).  Ties stay its choice: a query, unlike a view, may have them.

    Raises:
        DefinitionError: such a LIMIT is in a text that has parameters, or that sqlglot reads otherwise than Spark; or
            one in parentheses is in a text that sqlglot cannot read.
    """
    said = [word.text.upper() for word in words(sql) if not word.literal]
    if not _CUTS.intersection(said) or not any(each.startswith("ORDER") for each in said):
        return sql
    try:
        tree = parse(sql)
    except DefinitionError:
        return sql  # several statements, of which Spark says more
    if tree is None:
        if _cuts_inside(said):
            raise DefinitionError(
                "Spark may ignore the ORDER BY of a subquery with a LIMIT, and this text cannot be looked through for "
                "that; write it without |>, or the LIMIT outside of parentheses"
            )
        return sql
    shown = tree.copy()
    if not show_keys(shown):
        return sql
    # Its parameters would have other places in the new text, and Spark compares no text with parameters.
    if question_marks(sql) or not analyst.same(sql, text(tree), relations):
        raise DefinitionError(
            "Spark ignores the ORDER BY columns of a correlated subquery that the subquery does not select, so this "
            "LIMIT would keep any rows; select these columns inside the subquery, and leave them out around it"
        )
    return text(shown)


def _cuts_inside(said: Sequence[str]) -> bool:
    """Tell whether one of these words cuts rows off within parentheses."""
    depth = 0
    for word in said:
        depth += (word == "(") - (word == ")")
        if depth > 0 and word in _CUTS:
            return True
    return False


def _may_be_correlated(query: exp.Expr) -> bool:
    """Tell whether ``query`` is in a place whose rows another relation may decide: in an expression, or LATERAL."""
    inside, around = query, query.parent
    while around is not None:
        if isinstance(around, exp.Lateral) or (isinstance(inside, exp.Query) and not isinstance(around, _RELATING)):
            return True
        inside, around = around, around.parent
    return False


_RELATING: Final = (exp.CTE, exp.From, exp.Join, exp.SetOperation, exp.Subquery)
"""What a query stands in that is a relation, or a side of one."""


def _hidden(cut: exp.Select) -> list[exp.Ordered]:
    """Return the keys in the order of ``cut`` whose values its outputs need not show.

    With DISTINCT all keys are outputs, and so are those of ORDER BY ALL.
    """
    order = cut.args.get("order")
    if order is None or cut.args.get("distinct") is not None or _is_all(order):
        return []
    outputs = [(name, name) for name in map(_visible, cut.expressions) if name]
    return [key for key in order.expressions if number_of(key.this) is None and output_of(key.this, outputs) is None]


def _is_all(order: exp.Order) -> bool:
    keys = [each.this for each in order.expressions]
    return len(keys) == 1 and isinstance(keys[0], exp.Var) and keys[0].name.upper() == "ALL"


def _shown(cut: exp.Select, keys: Sequence[exp.Ordered]) -> exp.Select:
    """Return ``cut`` with ``keys`` as outputs of a query inside it."""
    inner, width, names = cut.copy(), _width(cut), [_visible(each) for each in cut.expressions]
    aliases = {each.alias.lower(): each.this for each in cut.expressions if isinstance(each, exp.Alias)}
    hidden: list[str] = []
    for key in inner.args["order"].expressions:
        if key in keys:
            hidden.append(f"{RESERVED}key_{len(hidden) + 1}")
            value = _over_inputs(key.this, aliases)
            inner.append("expressions", exp.Alias(this=value, alias=exp.to_identifier(hidden[-1], quoted=True)))
            key.set("this", column(hidden[-1]) if width is None else number(width + len(hidden)))
    if width is not None and all(names) and len({name.lower() for name in names}) == width:
        outputs: list[exp.Expr] = [column(name) for name in names]
    else:
        outputs = [exp.Star(except_=[exp.to_identifier(name, quoted=True) for name in hidden])]
    alias = exp.TableAlias(this=exp.to_identifier(f"{RESERVED}cut", quoted=True))
    return exp.Select(expressions=outputs, from_=exp.From(this=exp.Subquery(this=inner, alias=alias)))


def _visible(output: exp.Expr) -> str:
    """Return the name that an output has whatever Spark says; empty if Spark names it."""
    return output.alias_or_name if isinstance(output, exp.Alias | exp.Column) and not output.is_star else ""


def _over_inputs(key: exp.Expr, aliases: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return what ORDER BY means by ``key``, for a place where a name means a column before an output."""

    def meant(node: exp.Expr) -> exp.Expr:
        named = isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases
        return exp.Paren(this=aliases[node.name.lower()].copy()) if named else node

    return replaced(key, meant)


def is_cut_by_row(query: exp.Expr | None) -> bool:
    """Tell whether ``query`` is ordered by all of its outputs in the end: then LIMIT has no choice.

    >>> from strandline.compute.plan.sql import parse
    >>> [is_cut_by_row(parse(f"SELECT a, b FROM t ORDER BY c, {last} LIMIT 1")) for last in ("1, 2", "1")]
    [True, False]
    """
    width = None if query is None else _width(query)
    order = None if query is None else query.args.get("order")
    if width is None or order is None:
        return False
    keys = [number_of(key.this) for key in order.expressions]
    return set(range(1, width + 1)) <= set(keys)


def _width(query: exp.Expr) -> int | None:
    """Return how many outputs ``query`` has; None if the text alone does not say."""
    while isinstance(query, exp.SetOperation | exp.Subquery):
        query = query.this
    if not isinstance(query, exp.Select):
        return None
    outputs = query.expressions
    if any(each.is_star or isinstance(each, exp.Aliases) or Scalar(each.unalias()).generates for each in outputs):
        return None
    return len(outputs)


def ordering(key: exp.Ordered, output: str) -> exp.Ordered:
    """Return ``key`` with the column ``output`` for its expression."""
    return exp.Ordered(this=column(output), desc=key.args.get("desc"), nulls_first=key.args.get("nulls_first"))


def ascending(names: Iterable[str]) -> list[exp.Ordered]:
    """Return the order by these columns that breaks ties: ascending, NULLs first."""
    return [exp.Ordered(this=column(name), nulls_first=True) for name in names]


def first_rows(key: exp.Expr, rows: int | None) -> First | None:
    """Return the first ``rows`` in an order that begins with ``key``; None if that is no column, or not known."""
    if rows is None or not isinstance(key, exp.Ordered) or not isinstance(key.this, exp.Column):
        return None
    order = Order(key.this.name, bool(key.args.get("desc")), bool(key.args.get("nulls_first")))
    return First((order,), rows)


def number_of(value: exp.Expr | None) -> int | None:
    """Return the number that a literal is; None if it is none."""
    return int(value.name) if isinstance(value, exp.Literal) and value.name.isdecimal() else None


def top(context: Context, planned: Planned, keys: Sequence[exp.Ordered], query: exp.Expr) -> Planned:
    """Return the rows of ``planned`` that LIMIT and OFFSET of ``query`` keep, in the order of ``keys``.

    The keys are over the columns of ``planned.node``; those that are not outputs are there for the keys only.

    Its plan shows its keys too, so that they are stored with the rows.
    """
    kept = tuple(dict.fromkeys(planned.columns))
    order = exp.Order(expressions=[*keys, *ascending(kept)])
    bounds = {key: query.args[key].copy() for key in ("limit", "offset") if query.args.get(key)}
    stored = tuple(dict.fromkeys((*kept, *(key.this.name for key in keys))))
    sql = text(select(names(stored), _ORDERED, order=order, **bounds))
    plain = "offset" not in bounds
    limit = number_of(bounds["limit"].expression) if plain else None
    first = first_rows(order.expressions[0], limit)
    node = context.opaque((planned.node,), (_ORDERED,), sql, stored, _NO_RULE, picks=True, top=plain, first=first)
    return Planned(renamed(node, zip(kept, kept, strict=True)), planned.outputs)


def is_positional(window: exp.Window) -> bool:
    """Tell whether a window's value depends on the order of rows that its ORDER BY does not tell apart."""
    return _counts_rows(window) or of_window(window) in POSITIONAL


def is_settled(window: exp.Window) -> bool:
    """Tell whether a window has one value in any order of the rows that its ORDER BY does not tell apart.

    It has if it gives a value of the keys, of PARTITION BY and ORDER BY, out of a frame that those rows have in common.

    >>> from strandline.compute.plan.sql import parse
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

    >>> from strandline.compute.plan.sql import parse
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
    """Return ``expression`` with the windows that look at positions ordered by all ``columns`` in the end.

    If the frame ends with the peers of the current row (RANGE, the default), the order must not shrink the frame: it
    then ends with the last of all peers, not with the row itself.
    """
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
