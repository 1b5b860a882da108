"""Packed tuples and the split hash: bytes per row that sort as its values do, and a number of 32 bits per key.

The layout is FoundationDB's.  Objects and arrays are packed as the bytes of their compact JSON with sorted keys.
`pack` is the definition, by FoundationDB's own library; `packed` does the same for all rows of some columns at once,
without a Python object per value.  A test compares the two.

Trap: ``-0.0`` is packed before ``0.0``, though SQL says that they are equal; where a key is identified by its bytes,
`keyed` packs both as ``0.0``.

The split hash divides the rows of a collection among the splits of a task.  It is the upper half of HighwayHash64 of
the packed key under a fixed key, as Estuary Flow computes it, so a connector and Strandline agree which split has a
row.  A split has the hashes of its `task.KeyRange`, both ends included.

Source: FoundationDB, "Tuple layer"; Estuary Flow's rule for objects and arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, cast

import fdb.tuple  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from highwayhash._highwayhash import ffi, lib  # type: ignore[import-untyped]

from strandline.materialize.protocol.task import KeyRange
from strandline.materialize.wire.values import compact, not_finite, plain

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NULL: Final = b"\x00"
_BYTES: Final = b"\x01"
_TEXT: Final = b"\x02"
_ZERO: Final = 0x14
_DOUBLE: Final = 0x21
_FALSE: Final = 0x26
_TRUE: Final = 0x27
_SIGN: Final = np.uint64(1 << 63)
_INTEGER_BYTES_MAX: Final = 8


def pack(values: Sequence[Any]) -> bytes:
    """Return the packed tuple of JSON values.

    >>> pack((42, "hi")).hex(), pack(({"b": [2], "a": 1},))[1:-1]
    ('152a02686900', b'{"a":1,"b":[2]}')

    Raises `OverflowError` for an integer in an object or array that has no place in 64 bits.
    """
    flat = tuple(compact(value) if isinstance(value, dict | list | tuple) else value for value in values)
    return cast("bytes", fdb.tuple.pack(flat))


def unpack(data: bytes) -> tuple[Any, ...]:
    """Return what was packed; objects and arrays stay bytes of JSON.

    >>> unpack(pack((None, -1, "a", [1])))
    (None, -1, 'a', b'[1]')

    Raises `ValueError` for bytes that are no packed tuple.
    """
    try:
        return cast("tuple[Any, ...]", fdb.tuple.unpack(data))
    except (ValueError, IndexError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"these bytes are no packed tuple: {error}") from error


def packed(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Array:
    """Return the packed tuple of each row, of columns of equal length, as a binary array.

    >>> packed([pa.array([1, None]), pa.array(["a", "b"])]).to_pylist() == [pack((1, "a")), pack((None, "b"))]
    True
    """
    return _joined([_packed(plain(column)) for column in columns])


def keyed(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Array:
    """Return the packed tuples of key columns: equal iff SQL says that the keys are not distinct.

    >>> keyed([pa.array([-0.0])]) == keyed([pa.array([0.0])])
    True
    """
    return _joined([_packed(without_signed_zero(plain(column))) for column in columns])


def without_signed_zero(array: pa.Array) -> pa.Array:
    """Return a `plain` array of keys in which each value has one form."""
    return pc.add(array, 0.0) if pa.types.is_floating(array.type) else array


def _joined(parts: list[pa.Array]) -> pa.Array:
    assert parts, "a tuple of no columns does not say how many rows there are"
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def _packed(array: pa.Array) -> pa.Array:
    """Return each value of a `plain` array as an element of a tuple."""
    kind = array.type
    if pa.types.is_boolean(kind):
        found = pc.if_else(array, pa.scalar(bytes([_TRUE])), pa.scalar(bytes([_FALSE])))
    elif pa.types.is_integer(kind):
        found = _integers(array)
    elif pa.types.is_floating(kind):
        found = _doubles(array)
    else:
        found = _terminated(array, _BYTES if pa.types.is_binary(kind) else _TEXT)
    return pc.coalesce(found, pa.scalar(_NULL))


def _terminated(array: pa.Array, code: bytes) -> pa.Array:
    """Return texts or bytes behind their code, up to a NUL; each NUL inside is followed by FF."""
    escaped = pc.replace_substring(array.cast(pa.binary()), pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(pa.scalar(code), escaped, pa.scalar(_NULL), pa.scalar(b""))


def _integers(array: pa.Array) -> pa.Array:
    """Return integers: a code that says sign and length, then as few bytes as hold it, the complement of a negative."""
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    negative = numbers < 0
    with np.errstate(over="ignore"):
        sizes = np.where(negative, -numbers, numbers).view(np.uint64)  # also of -2**63, which wraps to 2**63
    digits = sizes.astype(">u8").view(np.uint8).reshape(-1, _INTEGER_BYTES_MAX)
    used = digits != 0
    lengths = np.where(used.any(axis=1), _INTEGER_BYTES_MAX - used.argmax(axis=1), 0)
    table = np.empty((len(numbers), 1 + _INTEGER_BYTES_MAX), np.uint8)
    table[:, 0] = _ZERO + np.where(negative, -lengths, lengths)
    table[:, 1:] = np.where(negative[:, None], ~digits, digits)
    # The bytes of a row stand at its end; its code stands before them.
    places = np.arange(1 + _INTEGER_BYTES_MAX)
    kept = (places == 0) | (places > _INTEGER_BYTES_MAX - lengths[:, None])
    return _binary(table[kept], 1 + lengths, array)


def _doubles(array: pa.Array) -> pa.Array:
    """Return doubles: a code and eight bytes whose order is that of the numbers; the others are texts, as in JSON."""
    numbers = array.fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = numbers.view(np.uint64)
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    table = np.empty((len(numbers), 9), np.uint8)
    table[:, 0] = _DOUBLE
    table[:, 1:] = ordered.astype(">u8").view(np.uint8).reshape(-1, 8)
    found = _binary(table.reshape(-1), np.full(len(numbers), 9, np.int64), array)
    finite = np.isfinite(numbers)
    if finite.all():
        return found
    texts = pa.array([None if fine else not_finite(n) for n, fine in zip(numbers, finite, strict=True)], pa.string())
    return pc.if_else(pa.array(finite), found, _terminated(texts, _TEXT))


def _binary(data: Bytes, lengths: Counts, like: pa.Array) -> pa.Array:
    """Return the binary array of ``data`` cut at ``lengths``, null where ``like`` is."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    found = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers).cast(pa.binary())
    return pc.if_else(like.is_valid(), found, pa.scalar(None, pa.binary())) if like.null_count else found


_KEY_BYTES: Final = bytes.fromhex("ba737e89155238d47d8067c35aad4d25ecdd1c3488227e011ffa480c022bd3ba")
_KEY: Final = ffi.new("uint64_t[4]", struct.unpack("=4Q", _KEY_BYTES))
_highwayhash: Final = lib.HighwayHash64  # itself: the library's Python function takes three times as long
_UPPER_HALF: Final = 32


def key_hash(packed: bytes) -> int:
    """Return the split hash of one packed key.

    >>> from strandline.materialize.wire.tuples import pack
    >>> f"{key_hash(pack(('foo', 'bar'))):08x}", f"{key_hash(pack((1,))):08x}"
    ('6ae719f3', '3c90c1d9')
    """
    return int(_highwayhash(packed, len(packed), _KEY)) >> _UPPER_HALF


def key_hashes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the split hash of each row, given its key columns in their order.

    Keys that SQL calls not distinct have one hash.
    """
    whole = [_highwayhash(each, len(each), _KEY) for each in keyed(columns).to_pylist()]
    return (np.array(whole, np.uint64) >> np.uint64(_UPPER_HALF)).astype(np.uint32)


def within(range_: KeyRange, hashes: np.ndarray[Any, np.dtype[np.uint32]]) -> pa.Array:
    """Return which rows belong to a split, as a mask to filter a table by.

    >>> within(KeyRange(2, 3), np.array([1, 2, 3, 4], np.uint32)).to_pylist()
    [False, True, True, False]
    """
    return pa.array((hashes >= range_.begin) & (hashes <= range_.end))
