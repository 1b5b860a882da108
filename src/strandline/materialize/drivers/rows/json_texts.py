"""Rows as JSON objects, a table at a time.

The values are those of `wire.values`.  Flat columns never become Python objects: Arrow writes the numbers, and of the
texts only those with a quote, a backslash or a control character are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.materialize.wire.values import not_finite, plain

_ESCAPED: Final = '["\\\\\x00-\x1f]'
"""What JSON does not let stand in a text, as a pattern."""
_NULL: Final = pa.scalar("null")
_encode: Final = msgspec.json.Encoder().encode


def objects(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    r"""Return the columns ``names`` of each row as the text of one JSON object, in their order.

    >>> objects(pa.table({"b": ['"', None], "a": [1, 2]}), ["a", "b"]).to_pylist()
    ['{"a":1,"b":"\\""}', '{"a":2,"b":null}']
    >>> objects(pa.table({"a": [1]}), []).to_pylist()
    ['{}']
    """
    if not names:
        return pa.array(["{}"] * len(rows), pa.string())
    parts: list[pa.Array | pa.Scalar] = []
    for place, name in enumerate(names):
        parts += [pa.scalar(("," if place else "{") + _encode(name).decode() + ":"), values(rows[name])]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def values(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the JSON text of each value.

    >>> values(pa.array([0.5, None, float("nan")])).to_pylist()
    ['0.5', 'null', '"NaN"']
    """
    array = _flat(column)
    written = bare(array)
    if _is_text(array.type):
        written = _escaped(written)
    elif pa.types.is_floating(array.type):
        written = pc.if_else(pc.is_finite(array), written, _quoted(written))
    elif not _is_json(array.type):
        written = _quoted(written)
    return pc.fill_null(written, _NULL)


def bare(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the text of each value without JSON's quotes, and NULL for NULL.

    >>> bare(pa.array(['a"b', None])).to_pylist(), bare(pa.array([[1.0, None]])).to_pylist()
    (['a"b', None], ['[1.0,null]'])
    """
    array = _flat(column)
    kind = array.type
    if pa.types.is_floating(kind):
        return _numbers(array)
    if _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    return plain(array).cast(pa.string())


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_json(kind: pa.DataType) -> bool:
    """Return whether the text of a value is JSON as it stands."""
    simple = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return bool(simple or pa.types.is_nested(kind))


def _numbers(array: pa.Array) -> pa.Array:
    """Return the shortest digits of each number, as many as its own type tells apart."""
    written = array.cast(pa.string())
    odd = pc.invert(pc.fill_null(pc.is_finite(array), True))
    if not pc.any(odd).as_py():
        return written
    named = pa.array([not_finite(each) for each in array.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(written, odd, named)


def _quoted(written: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', written, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    if not pc.any(special).as_py():
        return _quoted(texts)
    escaped = pa.array([_encode(each).decode() for each in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(_quoted(texts), special, escaped)


def keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the key of each row as the text of a JSON object: one text for values that SQL calls not distinct.

    >>> keys(pa.table({"k": [0.0, -0.0]}), ["k"]).to_pylist()
    ['{"k":0}', '{"k":0}']
    """
    return objects(one_zero(rows.select(list(names))), names)


def one_zero(rows: pa.Table) -> pa.Table:
    """Return the rows with 0.0 for -0.0, which SQL calls not distinct."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(place, field, pc.add(rows.column(place), pa.scalar(0, field.type)))
    return rows
