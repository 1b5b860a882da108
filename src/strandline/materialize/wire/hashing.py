"""The split hash: a number of 32 bits per key, by which the splits of a task divide the rows of a collection.

It is the upper half of HighwayHash64 of the packed key under a fixed key, as Estuary Flow computes it, so a connector's
and our own opinion of which split has a row agree.  A split has the hashes of its `task.KeyRange`, both ends included.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from highwayhash._highwayhash import ffi, lib  # type: ignore[import-untyped]

from strandline.materialize.protocol.task import KeyRange
from strandline.materialize.wire.tuples import keyed

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
