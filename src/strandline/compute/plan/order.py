"""ORDER BY … LIMIT: a top-k, recomputed over the plan of what it orders; its ties are broken by the whole row (law D).

Source: design page "the map" (decision 7: ties by binary order of the whole row).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from strandline.algebra.schema import quote
from strandline.compute.plan.context import Context, Planned, project
from strandline.compute.plan.dialect import text

TOP_K = "ORDER BY … LIMIT has no maintenance rule"
"""The reason of a top-k `Opaque`."""


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


def direction(key: exp.Ordered) -> str:
    """Return what follows the expression of an ORDER BY key."""
    return f"{'DESC' if key.args.get('desc') else 'ASC'} NULLS {'FIRST' if key.args.get('nulls_first') else 'LAST'}"


def top(context: Context, planned: Planned, keys: Sequence[str], query: exp.Expr) -> Planned:
    """Return the rows of ``planned`` that LIMIT and OFFSET of ``query`` keep, in the order of ``keys``.

    The keys are SQL over the columns of ``planned.node``; those that are not outputs are there for the keys only.
    """
    columns = [quote(c) for c in planned.columns]
    seen = {key.removesuffix(" ASC NULLS FIRST") for key in keys}
    order = [*keys, *(c for c in columns if c not in seen)]
    bounds = [
        f"{word} {text(query.args[key].expression)}"
        for key, word in (("limit", "LIMIT"), ("offset", "OFFSET"))
        if query.args.get(key)
    ]
    distinct = dict.fromkeys(columns)
    sql = f"SELECT {', '.join(distinct)} FROM ordered ORDER BY {', '.join(order)} {' '.join(bounds)}"
    names = tuple(dict.fromkeys(planned.columns))
    node = project(planned.node, [(name, quote(name)) for name in planned.node.names])
    return Planned(context.opaque((node,), ("ordered",), sql, names, TOP_K), planned.outputs)
