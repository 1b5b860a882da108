"""Expressions of the author's turned into expressions over the plan's columns, and equal keys of joins.

Both are sqlglot trees; in an expression over the plan's columns each `exp.Column` is a quoted name alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from strandline.algebra.nodes import Equal, Join, Project, joined
from strandline.algebra.scalar import Scalar, cast, column
from strandline.compute.plan.scalars.context import Context, Field, Scope, Unplanned, alike, parts_of
from strandline.compute.plan.sql import counts_rows, field, has_fields, replaced


def resolve(
    expression: exp.Expr,
    scope: Scope,
    aliases: Mapping[str, exp.Expr],
    *,
    aliases_first: bool = False,
    outside: Scope | None = None,
) -> exp.Expr:
    """Return ``expression`` over the plan's columns.

    A name that the FROM clause does not offer may be an alias (lower-case in ``aliases``), which is replaced by what
    it stands for; or, in a subquery, a name of ``outside``.  A ``*`` among the arguments of a call is the columns that
    the FROM clause offers.  Subqueries are `Unplanned`.
    """
    if expression.find(exp.Query) is not None:
        raise Unplanned("a subquery in an expression")

    def spread(call: exp.Expr) -> exp.Expr:
        given: list[exp.Expr] = []
        for argument in call.expressions:
            columns = starred(argument, scope)
            given += [replaced(argument, name)] if columns is None else [_argument(call, each) for each in columns]
        made = call.copy()
        made.set("expressions", given)
        return made

    def name(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Anonymous | exp.Distinct) and not counts_rows(node):
            return spread(node) if any(map(_is_star, node.expressions)) else node
        if not isinstance(node, exp.Column):
            return node
        parts = parts_of(node)
        if aliases_first and len(parts) == 1 and parts[0].lower() in aliases:
            return exp.Paren(this=aliases[parts[0].lower()].copy())
        found = scope.resolve(parts)
        if found is None:
            if len(parts) == 1 and parts[0].lower() in aliases:
                return exp.Paren(this=aliases[parts[0].lower()].copy())
            found = None if outside is None else outside.resolve(parts)
        if found is None:
            raise Unplanned(f"the name {'.'.join(parts)} is unknown here")
        result: exp.Expr = column(found[0].column)
        for inner in found[1]:
            result = exp.Dot(this=result, expression=exp.Identifier(this=inner, quoted=True))
        return result

    resolved = replaced(expression, name)
    if any(not counts_rows(star.parent) for star in resolved.find_all(exp.Star)):
        raise Unplanned("a * that is no argument of a call")
    return resolved


def starred(written: exp.Expr, scope: Scope) -> list[Field] | None:
    """Return the columns of ``scope`` that ``written`` stands for, if it is ``*`` or ``t.*``, else None."""
    if not _is_star(written):
        return None
    star = written.this if isinstance(written, exp.Column) else written
    without = star.args.get("except_") or []
    if star.args.get("replace") or star.args.get("rename") or any(len(parts_of(each)) != 1 for each in without):
        raise Unplanned("* with other changes than EXCEPT (names)")
    qualifier = parts_of(written)[:-1] if isinstance(written, exp.Column) else []
    if len(qualifier) > 1:
        raise Unplanned("* of a field")
    return scope.star(next(iter(qualifier), None), [each.name for each in without])


def _is_star(written: exp.Expr) -> bool:
    return isinstance(written.this if isinstance(written, exp.Column) else written, exp.Star)


def _argument(call: exp.Expr, offered: Field) -> exp.Expr:
    """Return the argument that a ``*`` of the arguments of ``call`` makes of a column."""
    if not has_fields(call):
        return column(offered.column)
    if offered.name is None:
        raise Unplanned("* of a column that has no name of its own")
    return field(call, column(offered.column), offered.name)


def refuse_ambiguous(expression: exp.Expr, scope: Scope, aliases: Mapping[str, exp.Expr]) -> None:
    """Raise `Unplanned` if a name may be an alias or another column of the FROM clause: which one is Spark's to say."""
    for node in expression.find_all(exp.Column):
        alias = aliases.get(node.name.lower()) if not node.table else None
        found = None if alias is None else scope.resolve([node.name])
        if alias is not None and found is not None and alias != column(found[0].column):
            raise Unplanned(f"the name {node.name} is an alias and a column")


def oriented(join: Join) -> tuple[Equal, ...]:
    """Return the keys of a join of two inputs, with what is read of the first input on the left."""
    own = frozenset(join.inputs[0].names)
    return tuple(e if e.left.columns <= own else Equal(e.right, e.left, e.nulls) for e in join.equal)


def sides(context: Context, join: Join, *, grouped: bool = False) -> tuple[Equal, ...]:
    """Return the `oriented` keys of a join, with types that are alike.

    ``grouped``: the second input is a scalar subquery's, which aggregates the rows with one key.

    Spark casts values of unequal types before it compares them, and several values of one type may become one value of
    the other: the texts ``1`` and ``01`` one integer, neighbouring integers one double.  So equality with a value of
    the other type does not tell values of one's own type apart, and the distinct values of a side are those of the
    cast.  Spark is asked for the type.

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
