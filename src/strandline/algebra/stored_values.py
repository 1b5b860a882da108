"""Stored values as values of a column: exact, or refused."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.arrow_types import arrow
from strandline.algebra.stored import fields_of, plain
from strandline.algebra.types import Array, Atom, Struct, Type


def converted(values: pa.Array, kind: Type) -> pa.Array:
    """Return values of a type that `fit` as values of ``kind``.

    >>> converted(pa.array([[("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), _ENTRIES).to_pylist()
    [[{'k': 'a', 'v': 2}, {'k': 'b', 'v': 1}]]

    Raises Arrow's `ArrowInvalid` if a value is none of ``kind``: nothing is rounded or cut.
    """
    stored = plain(values.type)
    return _converted(values.cast(_without_uuids(stored)), stored, kind)


def _without_uuids(stored: pa.DataType) -> pa.DataType:
    """Return the type with UUIDs as their bytes: Arrow can do little with lists and maps of them."""
    if isinstance(stored, pa.UuidType):
        return stored.storage_type
    if pa.types.is_map(stored):
        return pa.map_(_without_uuids(stored.key_type), _without_uuids(stored.item_type))
    if pa.types.is_list(stored):
        return pa.list_(_without_uuids(stored.value_type))
    if pa.types.is_struct(stored):
        return pa.struct([field.with_type(_without_uuids(field.type)) for field in fields_of(stored)])
    return stored


def _converted(values: pa.Array, stored: pa.DataType, kind: Type) -> pa.Array:
    target = arrow(kind)
    if pa.types.is_null(stored):
        return pa.nulls(len(values), target)
    match kind:
        case Array(Struct(((_, key), (_, value))) as entry) if pa.types.is_map(stored):
            return _entries(values, stored, arrow(entry), key, value)
        case Array(element):
            lengths = pc.fill_null(pc.list_value_length(values), 0)
            inner = _converted(values.flatten(), stored.value_type, element)
            return _listed(lengths, inner, target, values.is_null())
        case Struct(fields):
            there = zip(values.flatten(), fields_of(stored), fields, strict=True)
            inners = [_converted(each, field.type, own) for each, field, (_, own) in there]
            return pa.StructArray.from_arrays(inners, fields=list(target), mask=values.is_null())
        case Atom("string") if pa.types.is_time(stored):
            return _clock_texts(values)
        case Atom("string") if isinstance(stored, pa.UuidType):
            return pa.array([None if each is None else str(UUID(bytes=each)) for each in values.to_pylist()], target)
        case Atom("string"):
            return values.cast(pa.binary()).cast(target)  # this way round its bytes are looked at
        case _:
            return values.cast(target)


_ENTRIES: Final = Array(Struct((("k", Atom("string")), ("v", Atom("int")))))


def _entries(values: pa.MapArray, stored: pa.MapType, entry: pa.DataType, key: Type, value: Type) -> pa.Array:
    """Return maps as lists of their entries, in the order of the keys."""
    lists = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    raw_keys, raw_items = lists.flatten().flatten()
    keys, items = _converted(raw_keys, stored.key_type, key), _converted(raw_items, stored.item_type, value)
    order = pc.sort_indices(
        pa.table({"owner": pc.list_parent_indices(lists), "key": keys}),
        [("owner", "ascending"), ("key", "ascending")],
    )
    entries = pa.StructArray.from_arrays([keys.take(order), items.take(order)], fields=list(entry))
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return _listed(lengths, entries, pa.list_(pa.field("element", entry)), values.is_null())


def _listed(lengths: pa.Array, values: pa.Array, target: pa.DataType, null: pa.Array) -> pa.Array:
    """Return lists of such lengths, whose elements are ``values`` in order."""
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=null)


def _clock_texts(values: pa.Array) -> pa.Array:
    """Return times of day as Python writes them: without a fraction if there is none."""
    texts = values.cast(pa.time64("ns")).cast(pa.string())
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"000$", ""), r"\.0+$", "")
