"""Which rows of its inputs a step has to see: the look-ups that a step plan comes to.

A term of a join starts from few rows, its Δ.  Of the next input only those rows matter that have a key of these, of the
one after it only those that have a key of what was found, and so on.  The groups that a window touches are known by the
same keys: of what is stored for groups, and of what is aggregated again, only their rows matter.  So `planned` returns
the plan with a leaf of its own for each such side, and says what it holds: the rows of the side whose columns have the
values that the columns of other leaves have, which come first.

Everything else in the plan stays: it joins and groups what it gets, and any further rows would change nothing.  So a
side that cannot be looked up is read whole, without a difference in the answer.

Of what is not wanted at all if other rows are not there (`Restrict` without columns), nothing is read then.

A key counts only if it is a column, on both sides, all the way down to the leaves.

Source: design page "compute" (small windows: Python looks up old sides, one join step at a time).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.algebra.nodes import (
    Accumulate,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Passing,
    Project,
    Regroup,
    Restrict,
    UnionAll,
    children,
    rebuilt,
)
from strandline.algebra.scalar import Scalar
from strandline.compute.rules.phase import Phase, source


@dataclass(frozen=True, slots=True)
class Place:
    """Columns of a frame, by the names that the frame has for them."""

    frame: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The frame ``frame`` holds the rows of ``of`` whose ``columns`` have the values of a row at one of ``keys``.

    Without columns these are all rows, or if there is no row at ``keys``, none.  ``nulls``: NULL equals NULL there.
    """

    frame: str
    of: str
    columns: tuple[str, ...]
    keys: tuple[Place, ...]
    nulls: bool


def planned(plan: Node) -> tuple[Node, tuple[Lookup, ...]]:
    """Return ``plan`` over the frames that the look-ups give, which come in an order in which they can be made."""
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

    apart = named(plan)
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

    return renamed(plan), tuple(replace(lookup, frame=name) for lookup, name in kept.items())


@dataclass(frozen=True, slots=True)
class _Way:
    """Rows below ``to`` matter only if their ``to_columns`` have the values of ``by_columns`` of a row of ``by``."""

    by: Node
    by_columns: tuple[str, ...]
    to: Node
    to_columns: tuple[str, ...]
    nulls: bool


def _ways(node: Node) -> Iterator[_Way]:
    """Yield all ways in ``node``, those further down first: they start nearer to the changes."""
    for child in children(node):
        yield from _ways(child)
    match node:
        case Join():
            yield from _of_join(node)
        case Accumulate() | Regroup():
            keys = [(name, value.column) for name, value in node.keys]
            plain = [(name, own) for name, own in keys if own is not None]
            if plain:
                names, own = (tuple(each) for each in zip(*plain, strict=True))
                yield from _each(_Way(node.delta, own, node.prior, names, nulls=True))
                if isinstance(node, Regroup):
                    yield from _each(_Way(node.delta, own, node.new, own, nulls=True))
        case Restrict():
            yield from _each(_Way(node.keys, node.keys.names, node.input, node.columns, nulls=True))
        case _:
            pass


def _of_join(node: Join) -> Iterator[_Way]:
    for by, to in itertools.permutations(node.inputs, 2):
        pairs = [
            (one.column, other.column, equal.nulls)
            for equal in node.equal
            for one, other in ((equal.left, equal.right), (equal.right, equal.left))
            if one.column in by.names and other.column in to.names
        ]
        if pairs:
            by_columns = tuple(str(one) for one, _, _ in pairs)
            to_columns = tuple(str(other) for _, other, _ in pairs)
            yield from _each(_Way(by, by_columns, to, to_columns, any(nulls for _, _, nulls in pairs)))


def _each(way: _Way) -> Iterator[_Way]:
    """Yield the way, and after it, for where they are not in one place, its columns one by one."""
    yield way
    if len(way.by_columns) > 1:
        for one, other in zip(way.by_columns, way.to_columns, strict=True):
            yield replace(way, by_columns=(one,), to_columns=(other,))


def _possible(ways: Sequence[_Way], sides: dict[str, str], found: dict[str, Lookup]) -> Iterator[Lookup]:
    """Yield the look-ups that can be made next: by rows that are few, of sides that are not looked up yet."""
    for way in ways:
        keys = _places(way.by, way.by_columns)
        if keys is None or any(place.frame in sides and place.frame not in found for place in keys):
            continue
        for place in _places(way.to, way.to_columns) or ():
            if place.frame in sides and place.frame not in found:
                yield Lookup(place.frame, sides[place.frame], place.columns, keys, way.nulls)


def _places(node: Node, columns: tuple[str, ...]) -> tuple[Place, ...] | None:
    """Return where in the leaves the values of these columns come from; None if they are not just columns there.

    Each row of ``node`` has in ``columns`` the values of one row at one of these places.
    """
    match node:
        case Get():
            stored = dict(node.columns)
            return (Place(node.frame, tuple(stored[name] for name in columns)),)
        case Project():
            values = dict(node.columns)
            return _all_columns(node.input, [values[name] for name in columns])
        case Filter() | Passing() | Negate() | Restrict():
            return _places(node.input, columns)
        case UnionAll():
            at = [node.names.index(name) for name in columns]
            branches = [_places(each, tuple(each.names[n] for n in at)) for each in node.inputs]
            return None if None in branches else tuple(place for branch in branches for place in branch or ())
        case Join():
            own = [each for each in node.inputs if set(columns) <= set(each.names)]
            return _places(own[0], columns) if own else None
        case _:
            return None


def _all_columns(node: Node, values: Sequence[Scalar]) -> tuple[Place, ...] | None:
    columns = [value.column for value in values]
    return None if None in columns else _places(node, tuple(map(str, columns)))
