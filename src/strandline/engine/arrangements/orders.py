"""Orders as numbers: 64 bits for a column's value, which ascend as the values do in an order.

Unequal values may have equal numbers: texts with the same first eight bytes, decimals of more than 64 bits, a NULL and
the value beside it.  So a look-up that takes rows up to a number takes all rows that have it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from strandline.algebra.first import Order
from strandline.engine.arrangements.keys import Hashes, bits, first_word, fixed, plain

LAST: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_SIGN: Final = np.uint64(1 << 63)
_FIRST: Final = np.uint64(0)


def order_numbers(column: pa.ChunkedArray, order: Order) -> Hashes:
    """Return a number per row, for a column of a type that has a `keys.family`."""
    array = plain(column)
    if isinstance(array, pa.ChunkedArray):  # more than one array can hold
        return np.concatenate([order_numbers(pa.chunked_array([chunk]), order) for chunk in array.chunks])
    numbers = _ascending(array)
    if order.descending:
        numbers = ~numbers
    if array.null_count:
        numbers = np.where(np.asarray(array.is_null()), _FIRST if order.nulls_first else LAST, numbers)
    return numbers


def _ascending(array: pa.Array) -> Hashes:
    """Return numbers in ascending order; those of a NULL are anything."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return first_word(array).byteswap()
    if pa.types.is_decimal128(kind):
        lanes = fixed(array, np.dtype(np.int64), 2)
        low, high = lanes[:, 0], lanes[:, 1]
        narrow = high == low >> 63
        edge = np.where(high < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
        return np.asarray(np.where(narrow, low, edge)).view(np.uint64) ^ _SIGN
    numbers = bits(array)
    if pa.types.is_floating(kind):
        return np.where(numbers & _SIGN, ~numbers, numbers | _SIGN)
    return numbers if pa.types.is_boolean(kind) else numbers ^ _SIGN
