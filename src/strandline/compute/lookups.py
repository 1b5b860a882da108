"""Look-ups of a step: which rows and columns of its inputs its plan has to see.

A term of a join starts from few rows, its Δ.  Of the next input only the rows matter that have a key of these, of the
one after it only those that have a key of what was found, and so on.  The groups that a window touches are found by
the same keys: only their rows matter of what is stored for groups, and of what is aggregated again.  So `planned`
returns the plan with a leaf of its own for each such side, and a `Lookup` for it: the rows of the side whose columns
have the values of columns of other leaves, which come first.

Everything else in the plan is unchanged: it joins and groups what it gets, and further rows would change nothing.  So
a side that cannot be looked up is read whole, with the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.nodes import (
    Accumulate,
    Filter,
    First,
    Get,
    Join,
    Negate,
    Node,
    Project,
    Reduce,
    Regroup,
    Restrict,
    UnionAll,
    children,
    rebuilt,
    stored_columns,
)
from strandline.algebra.scalar import Condition, Scalar, columns, implied
from strandline.compute.rules.rule import Phase, source

_Names: TypeAlias = frozenset[str]


def pruned(node: Node) -> Node:
    """Return ``node`` over leaves with fewer columns; what it gives stays the same.

    Its leaves give only the columns that something above them reads.  Each row of a leaf is looked up, handed over and
    laid out, so a table of many columns costs what its narrow part does.  Rows that differ in other columns alone
    become equal rows; every node counts these one by one, so nothing above sees a difference.  A query that Spark
    alone can answer may read every column of its inputs, and an error shows all of its row: below these all columns
    stay.

    >>> from strandline.algebra.nodes import children
    >>> from strandline.algebra.scalar import scalar
    >>> wide = Filter(Get("a", (("x", "x"), ("y", "y"), ("z", "z"))), scalar("`y` > 1"))
    >>> children(pruned(Project(wide, (("x", scalar("`x`")),))))[0].names
    ('x', 'y')
    """
    return _exactly(_with(node, frozenset(node.names)), node.names)


def _with(node: Node, wanted: _Names) -> Node:
    """Return ``node`` with the ``wanted`` ones of its columns, and perhaps others."""
    match node:
        case Get():
            kept = tuple(each for each in node.columns if each[0] in wanted)
            return replace(node, columns=kept or node.columns[:1])
        case Project():
            outputs = tuple(each for each in node.columns if each[0] in wanted or each[1].generates) or node.columns[:1]
            return Project(_with(node.input, _columns_of(value for _, value in outputs)), outputs)
        case Filter():
            return replace(node, input=_with(node.input, wanted | node.predicate.columns))
        case Negate():
            return Negate(_with(node.input, wanted))
        case Join():
            all_of_them = wanted | _columns_of(node.conditions)
            return replace(node, inputs=tuple(_with(each, all_of_them & {*each.names}) for each in node.inputs))
        case UnionAll():
            return _union(node, wanted)
        case Reduce():
            return replace(node, input=_with(node.input, _grouped(node)))
        case Accumulate():
            read = _columns_of(value for _, value in node.keys) | _columns_of(
                each.contribution for each in node.accumulators
            )
            return replace(node, delta=_with(node.delta, read))
        case Regroup():
            read = _grouped(node) | _orders(node)
            return replace(node, delta=_with(node.delta, read), new=_with(node.new, read))
        case Restrict():
            input_ = _with(node.input, wanted.union(node.columns) | _orders(node))
            return replace(node, input=input_, keys=pruned(node.keys))
        case _:
            return rebuilt(node, pruned)


def _union(node: UnionAll, wanted: _Names) -> Node:
    kept = [n for n, name in enumerate(node.names) if name in wanted] or [0]

    def narrow(below: Node) -> Node:
        names = tuple(below.names[n] for n in kept)
        return _exactly(_with(below, frozenset(names)), names)

    return UnionAll(tuple(map(narrow, node.inputs)))


def _exactly(node: Node, names: tuple[str, ...]) -> Node:
    return node if node.names == names else Project(node, columns(names))


def _columns_of(values: Iterable[Scalar]) -> _Names:
    return frozenset(name for each in values for name in each.columns)


def _grouped(node: Reduce | Regroup) -> _Names:
    arguments = (each.argument for each in node.aggregates if each.argument is not None)
    return _columns_of(value for _, value in node.keys) | _columns_of(arguments)


def _orders(node: Regroup | Restrict) -> _Names:
    return frozenset() if node.first is None else frozenset(each.column for each in node.first.orders)


_ORDERED: Final = (exp.LT, exp.LTE, exp.GT, exp.GTE)


@dataclass(frozen=True, slots=True)
class Place:
    """Columns of a frame, by the names that the frame has for them; of rows for which ``where`` may be true.

    Of those with one value in the columns only the ``first`` matter.
    """

    frame: str
    columns: tuple[str, ...]
    where: tuple[Condition, ...] = ()
    first: First | None = None


class Access(IntEnum):
    """How the rows that matter of an old side were found: all of it read, read in part, or looked up by key."""

    SCAN = 0
    PRUNE = 1
    PROBE = 2


@dataclass(frozen=True, slots=True)
class Lookup:
    """The frame ``frame`` holds the rows of ``of`` whose ``columns`` have the values of a row at one of ``keys``.

    Without columns these are all rows, or if there are ``keys`` but no row at them, none.  ``nulls``: NULL equals NULL
    there.  Rows for which ``where`` is not true do not matter.  ``first``: of those with one key only the first matter,
    when the updates of the window have been added.  ``span``: the rows whose column has a value from the least to the
    greatest of those at ``keys``, whose updates cancel at each time.  ``read``: the columns that the plan and other
    look-ups read of it.
    """

    frame: str
    of: str
    columns: tuple[str, ...]
    keys: tuple[Place, ...]
    nulls: bool
    where: tuple[Condition, ...] = ()
    first: First | None = None
    span: bool = False
    read: tuple[str, ...] = ()


def described(collection: str, columns: Sequence[str], *, span: bool = False) -> str:
    """Return what a look-up goes by, for people.

    >>> described("orders", ("id", "line")), described("orders", ()), described("orders", ("price",), span=True)
    ('orders by id, line', 'orders, if any row counts', 'orders by price, between two values')
    """
    if span:
        return f"{collection} by {', '.join(columns)}, between two values"
    return f"{collection} by {', '.join(columns)}" if columns else f"{collection}, if any row counts"


def planned(plan: Node) -> tuple[Node, tuple[Lookup, ...]]:
    """Return ``plan``, pruned, over the frames that look-ups give; these come in an order in which they can be made.

    - A key counts only if it is a column, on both sides, all the way down to the leaves.
    - If only the first rows of a key matter, in an order, the look-up asks for just those, unless a node between it
      and the leaf drops rows: a filter might drop just these.
    - If a `Restrict` without columns finds no row, its input is not read.
    - Conditions of the plan on single columns of a leaf apply to its look-up, and to the keys that are taken from it:
      rows that they exclude are neither handed to the plan nor looked up by.
    """
    sides: dict[str, str] = {}  # the frame of each side that could be looked up, by the name of its own
    numbers = itertools.count()

    def named(node: Node) -> Node:
        if not isinstance(node, Get):
            return rebuilt(node, named)
        if source(node.frame)[1] is Phase.DELTA:
            return node
        own = f"{node.frame}#{next(numbers)}"
        sides[own] = node.frame
        return replace(node, frame=own)

    apart = named(pruned(plan))
    found: dict[str, Lookup] = {}
    ways = list(_ways(apart))
    while (lookup := next(_possible(ways, sides, found), None)) is not None:
        found[lookup.frame] = lookup
    return _merged(apart, sides, found)


def _merged(plan: Node, sides: dict[str, str], found: dict[str, Lookup]) -> tuple[Node, tuple[Lookup, ...]]:
    """Give equal look-ups one frame, and the sides that are not looked up their old names."""
    names: dict[str, str] = {name: name for name in sides}
    kept: dict[Lookup, str] = {}
    for name, lookup in found.items():
        keys = tuple(replace(place, frame=names.get(place.frame, place.frame)) for place in lookup.keys)
        names[name] = kept.setdefault(replace(lookup, frame="", keys=keys), name)
    names |= {name: side for name, side in sides.items() if name not in found}

    def renamed(node: Node) -> Node:
        if isinstance(node, Get):
            return replace(node, frame=names.get(node.frame, node.frame))
        return rebuilt(node, renamed)

    whole = renamed(plan)
    lookups = [replace(lookup, frame=name) for lookup, name in kept.items()]
    read = stored_columns(whole)
    return whole, tuple(replace(each, read=_read(each, lookups, read.get(each.frame, frozenset()))) for each in lookups)


def _read(lookup: Lookup, others: Sequence[Lookup], columns: frozenset[str]) -> tuple[str, ...]:
    """Return what is read of what ``lookup`` finds: ``columns`` by the plan, and what it and ``others`` go by."""
    orders = () if lookup.first is None else lookup.first.orders
    found = {*columns, *lookup.columns, *(each.column for each in orders), *(each.column for each in lookup.where)}
    for place in (place for other in others for place in other.keys if place.frame == lookup.frame):
        found |= {*place.columns, *(each.column for each in place.where)}
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class _Side:
    """``columns`` of a node; of its rows only those matter for which ``where`` is true, of each key the ``first``."""

    node: Node
    columns: tuple[str, ...]
    where: tuple[Condition, ...] = ()
    first: First | None = None


@dataclass(frozen=True, slots=True)
class _Way:
    """Rows of ``to`` matter only if their columns have the values that the columns of a row of ``by`` have.

    Without ``by``, no row of others says which of them matter.
    """

    by: _Side | None
    to: _Side
    nulls: bool
    span: bool = False


def _ways(node: Node, where: tuple[Condition, ...] = ()) -> Iterator[_Way]:
    """Yield all ways in ``node``, those further down first: they start nearer to the changes.

    ``where``: of the node's rows only those matter for which it is true.
    """
    for child, matters in _below(node, where):
        yield from _ways(child, matters)
    match node:
        case Join():
            yield from _of_join(node, where)
        case Accumulate() | Regroup():
            keys = [(name, value.column) for name, value in node.keys]
            plain = [(name, own) for name, own in keys if own is not None]
            if plain:
                names, own = (tuple(each) for each in zip(*plain, strict=True))
                yield from _each(_Way(_Side(node.delta, own), _Side(node.prior, names), nulls=True))
                if isinstance(node, Regroup):
                    first = node.first if len(plain) == len(keys) else None
                    yield from _each(_Way(_Side(node.delta, own), _Side(node.new, own, first=first), nulls=True))
            elif isinstance(node, Regroup) and not keys:
                yield _Way(None, _Side(node.new, (), first=node.first), nulls=True)
        case Restrict():
            to = _Side(node.input, node.columns, where, node.first)
            yield from _each(_Way(_Side(node.keys, node.keys.names), to, nulls=True))
        case Project(Join() as join):
            ((_, matters),) = _below(node, where)
            yield from _spans(join, frozenset(name for _, value in node.columns for name in value.columns), matters)
        case _:
            pass


def _of_join(node: Join, where: tuple[Condition, ...]) -> Iterator[_Way]:
    sides = [_Side(each, (), own) for each, own in _below(node, where)]
    for by, to in itertools.permutations(sides, 2):
        pairs = [
            (one.column, other.column, equal.nulls)
            for equal in node.equal
            for one, other in ((equal.left, equal.right), (equal.right, equal.left))
            if one.column in by.node.names and other.column in to.node.names
        ]
        if pairs:
            by_columns = tuple(str(one) for one, _, _ in pairs)
            to_columns = tuple(str(other) for _, other, _ in pairs)
            nulls = any(nulls for _, _, nulls in pairs)
            yield from _each(_Way(replace(by, columns=by_columns), replace(to, columns=to_columns), nulls))


def _spans(node: Join, wanted: frozenset[str], where: tuple[Condition, ...]) -> Iterator[_Way]:
    """Yield the ways by a value that a row of the join is compared with, and that is not ``wanted`` above.

    A scalar subquery gives such a value, of the one row of another side.  The join then changes only for rows between
    the old value and the new one, a *span*: these are looked up.
    """
    sides = [_Side(each, (), own) for each, own in _below(node, where)]
    for condition in node.on:
        tree = condition.tree.unnest()
        if not isinstance(tree, _ORDERED):
            continue
        names = (Scalar(tree.this).column, Scalar(tree.expression).column)
        others = {name for each in node.conditions if each is not condition for name in each.columns}
        for value, own in itertools.permutations(names):
            for by, to in itertools.permutations(sides, 2):
                alone = by.node.names == (value,) and value not in wanted | others and _is_delta(by.node)
                if alone and own is not None and own in to.node.names:
                    bound = replace(by, columns=by.node.names, where=())
                    yield _Way(bound, replace(to, columns=(own,)), nulls=False, span=True)


def _is_delta(node: Node) -> bool:
    """Tell whether ``node`` gives a row for each update of the window of one collection, and no others."""
    match node:
        case Project():
            return _is_delta(node.input) and not any(value.generates for _, value in node.columns)
        case Get():
            return source(node.frame)[1] is Phase.DELTA
        case _:
            return False


def _each(way: _Way) -> Iterator[_Way]:
    """Yield the way, and after it, for where they are not in one place, its columns one by one."""
    yield way
    if way.by is not None and len(way.by.columns) > 1:
        for one, other in zip(way.by.columns, way.to.columns, strict=True):
            yield replace(way, by=replace(way.by, columns=(one,)), to=replace(way.to, columns=(other,), first=None))


def _possible(ways: Sequence[_Way], sides: dict[str, str], found: dict[str, Lookup]) -> Iterator[Lookup]:
    """Yield the look-ups that can be made next: by rows that are few, of sides that are not looked up yet."""
    for way in ways:
        keys = () if way.by is None else _places(way.by)
        if keys is None or any(place.frame in sides and place.frame not in found for place in keys):
            continue
        for place in _places(way.to) or ():
            wanted = place.frame in sides and place.frame not in found
            if wanted and (keys or place.first is not None):
                own = (place.columns, keys, way.nulls, place.where, place.first, way.span)
                yield Lookup(place.frame, sides[place.frame], *own)


def _places(side: _Side) -> tuple[Place, ...] | None:
    """Return where in the leaves the values of these columns come from; None if they are not just columns there.

    Each row that matters has in its columns the values of one row at one of these places.
    """
    node, columns, first = side.node, side.columns, side.first
    below = [_Side(child, columns, where) for child, where in _below(node, side.where)]
    match node:
        case Get():
            stored = dict(node.columns)
            where = tuple(replace(each, column=stored[each.column]) for each in side.where)
            first = None if first is None else first.renamed(stored)
            return (Place(node.frame, tuple(stored[name] for name in columns), where, first),)
        case Project():
            values = {name: value.column for name, value in node.columns}
            own = [values[name] for name in columns]
            alike = first is not None and not any(value.generates for _, value in node.columns)
            first = first.renamed(values) if first is not None and alike else None
            return None if None in own else _places(replace(below[0], columns=tuple(map(str, own)), first=first))
        case Filter() | Negate() | Restrict():
            return _places(below[0])
        case UnionAll():
            branches = []
            for each in below:
                named = dict(zip(node.names, each.node.names, strict=True))
                own_first = None if first is None else first.renamed(named)
                branches.append(_places(replace(each, columns=tuple(map(named.__getitem__, columns)), first=own_first)))
            return None if None in branches else tuple(place for branch in branches for place in branch or ())
        case Join():
            inputs = [each for each in below if set(columns) <= set(each.node.names)]
            return _places(inputs[0]) if inputs else None
        case _:
            return None


def _below(node: Node, where: tuple[Condition, ...]) -> list[tuple[Node, tuple[Condition, ...]]]:
    """Return what ``node`` reads, each with what must be true of its rows for one to matter."""
    match node:
        case Filter():
            return [(node.input, _distinct((*where, *implied(node.predicate))))]
        case Project():
            own = {name: value.column for name, value in node.columns if value.column is not None}
            return [(node.input, _renamed(where, own))]
        case Negate():
            return [(node.input, where)]
        case Restrict():
            return [(node.input, where), (node.keys, ())]
        case UnionAll():
            return [(each, _renamed(where, dict(zip(node.names, each.names, strict=True)))) for each in node.inputs]
        case Join():
            known = _distinct((*where, *(each for on in node.on for each in implied(on))))
            return [(each, _renamed(known, {name: name for name in each.names})) for each in node.inputs]
        case _:
            return [(child, ()) for child in children(node)]


def _renamed(where: tuple[Condition, ...], names: dict[str, str]) -> tuple[Condition, ...]:
    """Return the conditions on columns in ``names``, by the names that these have there."""
    return tuple(replace(each, column=names[each.column]) for each in where if each.column in names)


def _distinct(where: tuple[Condition, ...]) -> tuple[Condition, ...]:
    return tuple(dict.fromkeys(where))
