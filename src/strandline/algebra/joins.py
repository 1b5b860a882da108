"""Joins: which of the conditions between inputs are equal keys.

A key says where the rows that meet one row can be looked up; any other condition can only be tried on pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from strandline.algebra.nodes import Equal, Join, Node
from strandline.algebra.scalar import Scalar


def joined(inputs: Sequence[Node], conditions: Iterable[Scalar], *, small: int | None = None) -> Join:
    """Return the inner join of ``inputs`` under the conjunction of ``conditions``.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> t, u = Get("t", (("a", "a"),)), Get("u", (("b", "b"), ("c", "c")))
    >>> node = joined((t, u), (scalar("a = b + 1"), scalar("a < c"), scalar("b = c")))
    >>> [(each.left.sql, each.right.sql) for each in node.equal], [each.sql for each in node.on]
    ([('a', 'b + 1')], ['a < c', 'b = c'])
    """
    equal: list[Equal] = []
    on: list[Scalar] = []
    for condition in conditions:
        key = _key(condition, inputs)
        if key is None:
            on.append(condition)
        else:
            equal.append(key)
    return Join(tuple(inputs), tuple(equal), tuple(on), small)


def _key(condition: Scalar, inputs: Sequence[Node]) -> Equal | None:
    tree = condition.tree.unnest()
    if not isinstance(tree, exp.EQ | exp.NullSafeEQ):
        return None
    left, right = (Scalar(side.unnest().copy()) for side in (tree.this, tree.expression))
    places = [reads_only(side, inputs) for side in (left, right)]
    if None in places or places[0] == places[1]:
        return None
    return Equal(left, right, isinstance(tree, exp.NullSafeEQ))


def reads_only(value: Scalar, inputs: Sequence[Node]) -> int | None:
    """Return the position of the only input that ``value`` reads; None if it reads none, or several."""
    places = [i for i, below in enumerate(inputs) if value.columns and value.columns <= frozenset(below.names)]
    return places[0] if places else None
