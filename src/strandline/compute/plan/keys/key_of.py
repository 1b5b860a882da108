"""`key_of`: by which columns a query that no other rule maintains can be run again in parts.

It is worked out once, when a view is planned, where the types of columns are known too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from strandline.algebra.nodes import Key, Opaque
from strandline.algebra.scalar import text
from strandline.compute.plan.keys.scope import NoKey, Strand
from strandline.compute.plan.keys.strands import Query


def key_of(node: Opaque) -> Key | None:
    """Return columns by which ``node`` falls into parts; None if none are known.

    >>> from strandline.algebra.nodes import Get
    >>> rows = Get("t", (("a", "a"), ("b", "b")))
    >>> sql = "SELECT `b` AS `x`, row_number() OVER (PARTITION BY `b` ORDER BY `a`) AS `n` FROM `__rows`"
    >>> key_of(Opaque((rows,), ("__rows",), sql, ("x", "n"), ""))
    Key(inputs=(('b',),), output=('x',))
    """
    found: dict[tuple[str, ...], str] = {}
    try:
        rows = Query(node).rows()
    except NoKey:
        return None
    for strand in rows.strands:
        columns = _columns(node, strand)
        if strand.compared and columns is not None:
            found.setdefault(columns, node.names[min(strand.shown)])
    return Key(tuple(zip(*found, strict=True)), tuple(found.values())) if found else None


def showing_key(node: Opaque, fresh: Callable[[str], str]) -> Opaque:
    """Return ``node`` with more outputs, named by ``fresh``: the columns that keep its rows apart and are not shown.

    >>> from strandline.algebra.nodes import Get
    >>> rows = Get("t", (("a", "a"), ("b", "b")))
    >>> sql = "SELECT SUM(`a`) OVER (PARTITION BY `b`) AS `x` FROM `__rows`"
    >>> showing_key(Opaque((rows,), ("__rows",), sql, ("x",), ""), lambda name: f"{name}_2").sql
    'SELECT SUM(`a`) OVER (PARTITION BY `b`) AS `x`, `b` AS `b_2` FROM `__rows`'
    """
    try:
        query = Query(node)
        hidden = query.rows().hidden
    except NoKey:
        return node
    wanted = {strand.read: shown for strand, shown in hidden if strand.compared and _columns(node, strand) is not None}
    if not wanted:
        return node
    items = [
        exp.Alias(this=shown, alias=exp.Identifier(this=fresh(shown.name), quoted=True)) for shown in wanted.values()
    ]
    query.tree.set("expressions", [*query.tree.expressions, *items])
    return replace(node, sql=text(query.tree), names=(*node.names, *(item.alias for item in items)))


def _columns(node: Opaque, strand: Strand) -> tuple[str, ...] | None:
    """Return the column of each input that is in ``strand``; None if there is not one of each."""
    found = [[column for alias, column in strand.read if alias == own] for own in node.aliases]
    return tuple(own[0] for own in found) if all(len(own) == 1 for own in found) else None
