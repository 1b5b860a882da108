"""Equalities of two sides, in the type in which Spark compares them.

Spark casts values of unequal types before it compares them, and several values of one type may become one value of the
other: the texts ``1`` and ``01`` one integer, neighbouring integers one double.  So equality with a value of the other
type does not tell values of one's own type apart, and the distinct values of a side are those of the cast.  Spark is
asked for the type.
"""

from __future__ import annotations

from strandline.algebra.joins import joined
from strandline.algebra.nodes import Equal, Join, Project
from strandline.algebra.scalar import Scalar, cast
from strandline.compute.plan.scalars.context import Context, alike
from strandline.compute.plan.scalars.scope import Unplanned


def oriented(join: Join) -> tuple[Equal, ...]:
    """Return the keys of a join of two inputs, with what is read of the first input on the left."""
    own = frozenset(join.inputs[0].names)
    return tuple(e if e.left.columns <= own else Equal(e.right, e.left, e.nulls) for e in join.equal)


def sides(context: Context, join: Join, *, grouped: bool = False) -> tuple[Equal, ...]:
    """Return the `oriented` keys of a join, with types that are alike.

    ``grouped``: the second input is a scalar subquery's, which aggregates the rows with one key.

    Raises:
        Unplanned: no collection can hold the type in which Spark compares two sides, or Spark groups by another.
    """
    equal = oriented(join)
    if not equal:
        return ()
    values = [value for each in equal for value in (each.left, each.right)]
    asked = Project(joined(join.inputs, ()), tuple((f"value_{n}", value) for n, value in enumerate(values)))
    types = [c.type for c in context.schema(asked)]
    pairs = zip(equal, types[::2], types[1::2], strict=True)
    return tuple(_in_one_type(context, each, left, right, grouped=grouped) for each, left, right in pairs)


def _in_one_type(context: Context, equal: Equal, left: str, right: str, *, grouped: bool) -> Equal:
    """Return ``equal``, whose sides have these types, with casts where Spark would make them."""
    if alike(left, right):
        return equal
    common = context.analyst.compared(left, right)
    if common is None:
        raise Unplanned(f"it compares values of two types ({left} with {right}); write a CAST")
    if grouped and (right, common) == ("bigint", "double"):
        # Spark takes this cast for exact and groups by the integers, so that a row outside may meet several groups.
        raise Unplanned("Spark aggregates by integers that may be one double; write a CAST AS DOUBLE of them")
    one, other = (
        value if type_ == common else Scalar(cast(value.tree, common))
        for value, type_ in ((equal.left, left), (equal.right, right))
    )
    return Equal(one, other, equal.nulls)
