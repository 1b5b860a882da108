"""Outer, semi and anti joins as sums of inner joins: which rows find a match is a relation of its own.

Of ``left`` and ``right`` under some conditions, `matching` makes a relation of which each row of ``left`` meets one
row if it finds a match in ``right``, and none otherwise.  With equal keys alone these are the distinct keys of
``right``.  With further conditions they are the distinct values, in pairs that fulfil them, of the columns of ``left``
that the conditions read: two rows of ``left`` with the same values there find the same matches.  Then, as multisets::

    semi  = left ⋈ matches
    anti  = left - left ⋈ matches
    outer = padded left + left ⋈ (right - padded matches)

When a row gains its first match or loses its last, the rules of joins and of distinct rows add or remove its output at
that time.  These joins have no rule of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.nodes import (
    Equal,
    Filter,
    Join,
    Negate,
    Node,
    Opaque,
    Project,
    Reduce,
    UnionAll,
    joined,
    reads_only,
)
from strandline.algebra.scalar import Scalar, cast, column, columns, conjunction, number
from strandline.compute.plan.scalars.context import Context, Unplanned
from strandline.compute.plan.scalars.expressions import oriented, sides


def key(plan: Node) -> tuple[str, ...] | None:
    """Return columns of ``plan`` such that no two of its rows agree on all of them; None if none are known.

    The empty tuple is a key too: there is at most one row.

    An endpoint needs such a key to update a row in place.  A key found here follows from the shape of the plan and
    holds at every time; if none is found, there may still be one.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> reduced = Reduce(Get("t", (("a", "a"),)), (("k", scalar("`a`")),), ())
    >>> key(Project(reduced, (("x", scalar("`k`")), ("y", scalar("1")))))
    ('x',)
    """
    match plan:
        case Reduce(keys=keys):
            return tuple(name for name, _ in keys)
        case Filter(input=below):
            return key(below)
        case Opaque(picks=True, inputs=(only,)):
            found = key(only)
            return found if found is not None and set(found) <= set(plan.names) else None
        case Project(input=below, columns=columns):
            found = key(below)
            if found is None or any(value.generates for _, value in columns):
                return None
            passed = {value.column: name for name, value in reversed(columns)}
            return tuple(passed[k] for k in found) if all(k in passed for k in found) else None
        case Join(inputs=inputs):
            parts = [key(below) for below in inputs]
            return None if None in parts else tuple(name for part in parts for name in part or ())
        case _:
            return None


Columns: TypeAlias = tuple[tuple[str, Scalar], ...]

_IDENTIFYING: Final = ("tinyint", "smallint", "int", "bigint", "decimal", "string", "date", "timestamp", "boolean")
"""Types of which equal values are the same to every expression.  (0.0 equals -0.0, and is another text.)"""


@dataclass(frozen=True, slots=True)
class Matches:
    """Which rows of ``left`` find a match: those that meet a row of ``node`` under ``conditions``.

    ``left`` has the columns ``names``, and one for each thing that the conditions compute of it: so a row that fails
    there fails wherever ``left`` is read.  ``keys`` are the columns of ``node`` as expressions over ``right``, which is
    what ``left`` is matched with; None: ``right`` are the pairs that match.
    """

    left: Node
    names: tuple[str, ...]
    node: Node
    conditions: tuple[Scalar, ...]
    right: Node
    keys: Columns | None = None

    def beside(self, others: Node, wanted: Columns) -> Node:
        """Return ``wanted`` of the rows of ``left`` with what they meet in ``others``, rows like those of ``node``."""
        return Project(joined((self.left, others), self.conditions), wanted)


def matching(context: Context, left: Node, right: Node, conditions: Sequence[Scalar]) -> Matches:
    """Return which rows of ``left`` find a match in ``right``.

    Raises:
        Unplanned: only trying all pairs would tell.
    """
    names, both = left.names, joined((left, right), conditions)
    right = filtered(right, [each for each in both.on if reads_only(each, [right]) == 0])
    own = [each for each in both.on if each.columns <= frozenset(names)]
    paired = tuple(each for each in both.on if not each.columns <= frozenset(names) and reads_only(each, [right]) != 0)
    computed: dict[Scalar, str] = {}

    def plain(value: Scalar) -> Scalar:
        if value.column is None and value.columns:
            return Scalar(column(computed.setdefault(value, context.names.fresh("computed"))))
        return value

    equal = oriented(both) if paired else sides(context, both)  # of pairs Spark itself compares the sides
    equal = tuple(Equal(plain(each.left), each.right, each.nulls) for each in equal)
    alone = tuple(map(plain, own))
    if computed:
        left = Project(left, (*columns(names), *((name, value) for value, name in computed.items())))
    if paired:
        return _in_pairs(context, Matches(left, names, right, (*(e.condition for e in equal), *alone, *paired), right))
    keys = tuple((context.names.fresh(f"match_{each.right.column or ''}"), each.right) for each in equal)
    keys = keys or ((context.names.fresh("match"), Scalar(number(1))),)
    found = [Equal(e.left, Scalar(column(name)), e.nulls).condition for e, (name, _) in zip(equal, keys, strict=False)]
    return Matches(left, names, _distinct(context, right, keys), (*found, *alone), right, keys)


def _in_pairs(context: Context, pairs: Matches) -> Matches:
    """Return the matches that pairs of rows under all the conditions show."""
    join = joined((pairs.left, pairs.right), pairs.conditions)
    if not join.equal:
        raise Unplanned("it would try all pairs of rows; write an equality between the two sides")
    read = {name for each in pairs.conditions for name in each.columns}
    told = [name for name in pairs.left.names if name in read]
    types = {c.name: c.type for c in context.schema(pairs.left)}
    if not all(types[name].split("(")[0] in _IDENTIFYING for name in told):
        raise Unplanned("a further condition reads a value that is no exact number, text or time; write a CAST")
    keys = tuple((context.names.fresh(f"match_{name}"), Scalar(column(name))) for name in told)
    same = tuple(Equal(value, Scalar(column(name)), nulls=True).condition for name, value in keys)
    return Matches(pairs.left, pairs.names, _distinct(context, join, keys), same, join)


def _distinct(context: Context, node: Node, keys: Columns) -> Node:
    """Return the distinct values of ``keys`` in ``node``: a projection, where no two of its rows have the same."""
    unique = key(node)
    if unique is not None and {value.column for _, value in keys}.issuperset(unique):
        return Project(node, keys)
    made = Reduce(node, keys, ())
    context.learn(made)
    return made


def filtered(node: Node, conditions: Sequence[Scalar]) -> Node:
    """Return the rows of ``node`` for which all ``conditions`` are true."""
    if not conditions:
        return node
    if isinstance(node, Filter):
        return filtered(node.input, [node.predicate, *conditions])
    return Filter(node, Scalar(conjunction(each.tree for each in conditions)))


def semi(matches: Matches) -> Node:
    """Return the rows of the left side that find a match."""
    return matches.beside(matches.node, columns(matches.names))


def anti(matches: Matches) -> Node:
    """Return the rows of the left side that find no match."""
    return UnionAll((_only(matches, columns(matches.names)), Negate(semi(matches))))


def marked(matches: Matches, mark: str) -> Node:
    """Return the left side with a column ``mark``: whether the row finds a match."""
    own, lost, found = columns(matches.names), *((mark, Scalar(exp.Boolean(this=each))) for each in (False, True))
    seen, unseen = (Project(matches.node, (*columns(matches.node.names), each)) for each in (found, lost))
    change = matches.beside(UnionAll((seen, Negate(unseen))), (*own, (mark, Scalar(column(mark)))))
    return UnionAll((_only(matches, (*own, lost)), change))


def outer(context: Context, left: Node, right: Node, conditions: Sequence[Scalar]) -> Node:
    """Return the left outer join of ``left`` and ``right``: the columns of both, in order."""
    matches, shown = matching(context, left, right, conditions), columns((*left.names, *right.names))
    nulls = tuple((c.name, Scalar(cast(exp.Null(), c.type))) for c in context.schema(right))
    padded = (*columns(left.names), *nulls)
    if matches.keys is None:
        return UnionAll(
            (_only(matches, padded), Project(matches.right, shown), Negate(matches.beside(matches.node, padded)))
        )
    there = Project(matches.right, (*columns(right.names), *matches.keys))
    padding = Project(matches.node, (*nulls, *columns(matches.node.names)))
    return UnionAll((_only(matches, padded), matches.beside(UnionAll((there, Negate(padding))), shown)))


def full(context: Context, left: Node, right: Node, conditions: Sequence[Scalar]) -> Node:
    """Return the full outer join of ``left`` and ``right``: the columns of both, in order."""
    nulls = tuple((c.name, Scalar(cast(exp.Null(), c.type))) for c in context.schema(left))
    lonely = Project(anti(matching(context, right, left, conditions)), (*nulls, *columns(right.names)))
    return UnionAll((outer(context, left, right, conditions), lonely))


def _only(matches: Matches, wanted: Columns) -> Node:
    """Return ``wanted`` of the left side alone."""
    if tuple(name for name, _ in wanted) == matches.left.names:
        return matches.left
    return Project(matches.left, wanted)
