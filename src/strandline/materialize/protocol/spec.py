"""The reference model: what an endpoint's table holds after a list of changes, computed with a dictionary.

It is never optimised: tests compare `stores`, the runtime and every driver with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.errors import DefinitionError
from strandline.materialize.protocol.task import Binding


def contents(
    binding: Binding, changes: Iterable[tuple[Mapping[str, Any], int]]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the sum of ``(row, diff)`` changes, starting from nothing: one row per key.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("x", "int"))))
    >>> contents(b, [({"k": 1, "x": 1}, 1), ({"k": 1, "x": 1}, -1), ({"k": 1, "x": 2}, 1)])
    {('1',): {'k': 1, 'x': 2}}
    """
    counts: dict[str, int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for row, diff in changes:
        whole = canonical(dict(row))
        rows[whole] = dict(row)
        counts[whole] = counts.get(whole, 0) + diff
    table: dict[tuple[str, ...], dict[str, Any]] = {}
    for whole, count in counts.items():
        if count == 0:
            continue
        key = tuple(canonical(rows[whole][name]) for name in binding.key)
        if count != 1 or key in table:
            raise DefinitionError(f"{binding.collection!r}: more than one row has the key {key}")
        table[key] = rows[whole]
    return table


def canonical(value: object) -> str:
    """Return a text that is the same for values that SQL calls not distinct.

    >>> canonical(-0.0) == canonical(0.0), canonical(float("nan")) == canonical(float("nan")), canonical(None)
    (True, True, 'None')
    """
    return repr(value + 0.0 if isinstance(value, float) else value)
