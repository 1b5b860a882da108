"""GROUPING SETS, ROLLUP and CUBE: the sets of keys that one GROUP BY groups by, each for itself.

Several of them, and plain keys beside them, are combined: each set of one with each set of the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from strandline.compute.plan.scalars.scope import Unplanned

AFTER_KEYS: Final = ("grouping_sets", "cube", "rollup", "totals")
"""What may follow the keys of a GROUP BY, in sqlglot's words."""
SETS_MAX: Final = 16
"""Each set is a collection of its own, and a part of each step."""


def grouping_sets(group: exp.Group) -> tuple[list[exp.Expr], list[list[exp.Expr]]] | None:
    """Return all keys of ``group`` as they are written, and those of each set; None if it has but one set of keys.

    To Spark, one set that is empty is no set at all, so that its total is there even of no rows.

    >>> from strandline.compute.plan.sql.dialect import parse
    >>> keys, sets = grouping_sets(parse("SELECT 1 FROM t GROUP BY a, ROLLUP (b, (c, d))").args["group"])
    >>> [[key.name for key in each] for each in (keys, *sets)]
    [['a', 'b', 'c', 'd'], ['a', 'b', 'c', 'd'], ['a', 'b'], ['a']]
    >>> grouping_sets(parse("SELECT 1 FROM t GROUP BY GROUPING SETS (())").args["group"])
    ([], [])
    """
    after = [each for name in AFTER_KEYS for each in group.args.get(name) or ()]
    several = [each for each in group.expressions if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets)]
    if not (after or several):
        return None
    if after and (several or len(after) > 1 or not isinstance(after[0], exp.Rollup | exp.Cube | exp.GroupingSets)):
        raise Unplanned("grouping sets of several kinds after the keys")
    written = group.expressions
    if after:  # as in GROUP BY a, b WITH ROLLUP
        written = [after[0] if after[0].expressions else type(after[0])(expressions=group.expressions)]
    elif any(isinstance(each, exp.Tuple) for each in written):
        raise Unplanned("GROUP BY a structure beside grouping sets")
    combined: list[list[exp.Expr]] = [[]]
    for each in written:
        combined = [[*before, *own] for before in combined for own in _sets(each)]
        if len(combined) > SETS_MAX:
            raise Unplanned(f"there are more than {SETS_MAX} grouping sets")
    keys = [key for each in group.expressions + after for key in _keys(each)]
    return keys, combined if keys or len(combined) > 1 else []


def _sets(element: exp.Expr) -> Iterator[list[exp.Expr]]:
    """Yield the sets of an element of GROUP BY, or of one of GROUPING SETS."""
    match element:
        case exp.GroupingSets():
            for each in element.expressions:
                yield from _sets(each)
        case exp.Rollup() | exp.Cube():
            parts = [list(_keys(each)) for each in element.expressions]
            for count in range(len(parts), -1, -1):
                chosen = [parts[:count]] if isinstance(element, exp.Rollup) else itertools.combinations(parts, count)
                yield from ([key for part in some for key in part] for some in chosen)
        case _:
            yield list(_keys(element))


def _keys(element: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the keys of an element, in the order in which they are written."""
    if isinstance(element, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        for each in element.expressions:
            yield from _keys(each)
    else:
        yield element.unnest()
