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
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return pc.fill_null(_texts(array), _NULL)


def _texts(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        return _numbers(array)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(array.cast(pa.string()))
    written = plain(array)
    if pa.types.is_nested(kind):
        return written.cast(pa.string())
    return pc.binary_join_element_wise('"', written, '"', "")


def _numbers(array: pa.Array) -> pa.Array:
    """Return the shortest digits of each number, as many as its own type tells apart."""
    written = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() in {True, None}:
        return written
    named = pa.array([f'"{not_finite(each)}"' for each in array.filter(pc.invert(finite)).to_pylist()], pa.string())
    return pc.replace_with_mask(written, pc.fill_null(pc.invert(finite), False), named)


def _quoted(array: pa.Array) -> pa.Array:
    written = pc.binary_join_element_wise('"', array, '"', "")
    special = pc.fill_null(pc.match_substring_regex(array, _ESCAPED), False)
    if not pc.any(special).as_py():
        return written
    escaped = pa.array([_encode(each).decode() for each in array.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(written, special, escaped)


def keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the key of each row as the text of a JSON object: one text for values that SQL calls not distinct.

    >>> keys(pa.table({"k": [0.0, -0.0]}), ["k"]).to_pylist()
    ['{"k":0}', '{"k":0}']
    """
    for name in names:
        if pa.types.is_floating(rows[name].type):
            zero = pa.scalar(0, rows[name].type)
            rows = rows.set_column(rows.schema.get_field_index(name), name, pc.add(rows[name], zero))
    return objects(rows, names)
