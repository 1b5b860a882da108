"""Greatest keys: of each binding the greatest key that its resource was ever given, so that Loads are left out.

A key that is greater than all that were ever stored cannot be there, so the endpoint need not be asked for it.  That is
most keys of a collection whose keys grow, as numbers and times of events do.

The greatest key is made durable together with the extent, before the first of its rows is sent: so it is never less
than what is stored, whatever fails.  It may be more, and never goes back, which only asks for more.  It counts from
when the resource was empty; of a resource that was filled before, it is not known, and every key is asked for.

Keys are compared as tuples, NULL first, numbers and times by value, texts by code points, which is the order of their
UTF-8 bytes.  Only types with such an order have a greatest key.

Law: what is stored is the same as if every key were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.types import Atom, parse
from strandline.materialize.protocol.task import Binding

Key: TypeAlias = tuple[int | str | None, ...]
Greatest: TypeAlias = Mapping[str, Key | None]
"""By state key; None: nothing was stored yet.  Of a state key that is not there nothing is known."""

NOT_KNOWN: Final[Greatest] = {}
ORDERED: Final = frozenset(
    {Atom(name) for name in ("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz")}
)


def ordered(binding: Binding) -> bool:
    """Return whether the keys of a binding have a greatest one."""
    kinds = {column.name: parse(column.name, column.type) for column in binding.schema}
    return not binding.delta and all(kinds[name] in ORDERED for name in binding.key)


def greater(one: Key | None, other: Key | None) -> Key | None:
    """Return the greater of two keys; None: no key.

    >>> greater((1, "b"), (1, "a")), greater((None,), (-5,)), greater(None, (None,)), greater(("Z",), ("a",))
    ((1, 'b'), (-5,), (None,), ('a',))
    """
    found = [key for key in (one, other) if key is not None]
    return max(found, key=lambda key: [(value is not None, value) for value in key], default=None)


def of_rows(binding: Binding, rows: pa.Table) -> Key | None:
    """Return the greatest key of ``rows``; None if there are none."""
    columns = [comparable(rows[name]) for name in binding.key]
    found: list[int | str | None] = []
    for place in range(len(columns)):
        if not len(columns[place]):
            return None
        value = pc.max(columns[place])
        same = pc.equal(columns[place], value) if value.is_valid else pc.is_null(columns[place])
        found.append(value.as_py())
        columns = [column.filter(same) for column in columns]
    return tuple(found)


def up_to(binding: Binding, keys: pa.Table, greatest: Key | None) -> pa.Table:
    """Return those of ``keys`` that may be stored: none is greater than the ``greatest``."""
    if greatest is None:
        return keys.slice(0, 0)
    less = pa.chunked_array([pa.repeat(pa.scalar(False), len(keys))])
    equal = pc.invert(less)
    for name, value in zip(binding.key, greatest, strict=True):
        column = comparable(keys[name])
        null = pc.is_null(column)
        if value is None:
            equal = pc.and_(equal, null)
            continue
        bound = pa.scalar(value, column.type)
        below = pc.or_(null, pc.fill_null(pc.less(column, bound), False))
        less = pc.or_(less, pc.and_(equal, below))
        equal = pc.and_(equal, pc.fill_null(pc.equal(column, bound), False))
    return keys.filter(pc.or_(less, equal))


def joined(parts: Iterable[Greatest]) -> Greatest:
    """Return the greatest keys of a task, given those of all its splits."""
    first, *others = parts
    found = dict(first)
    for part in others:
        found = {name: greater(key, part[name]) for name, key in found.items() if name in part}
    return found


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values Arrow orders as this module does: times as numbers."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
