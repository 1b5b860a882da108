"""ORDER BY … LIMIT: a top-k over the plan of what it orders; its ties are broken by the whole row (law D).

It shows its keys too, so that they are stored with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp

from strandline.algebra.first import First, Order
from strandline.algebra.scalar import Scalar, column, number, text
from strandline.algebra.schema import RESERVED
from strandline.compute.plan.scalars.compose import names, select
from strandline.compute.plan.scalars.context import Context, Planned, renamed
from strandline.errors import DefinitionError

_NO_RULE: Final = "OFFSET has no maintenance rule"
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


def is_cut_by_row(query: exp.Expr | None) -> bool:
    """Tell whether ``query`` is ordered by all of its outputs in the end: then LIMIT has no choice.

    >>> from strandline.compute.plan.sql.dialect import parse
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
