"""Keys as numbers: 64 bits for the values of some columns, equal where SQL calls the values equal.

Unequal values may have equal numbers too, once in a while: what is found by them is more than what was asked for, and
never less.  All integers hash by their value, so that an `int` finds a `bigint`; all other types only find themselves.
There is no order in these numbers but their own, and no store holds one: an arrangement ends with its process.

A text costs its length, whatever the others are: short ones are hashed by words, a word of all of them at a time, and
long ones by XXH3, one by one.

The mixer is that of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from strandline.errors import CollectionError

Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_NULL: Final = np.uint64(0x632BE59BD9B4E019)
_WORD: Final = 8
WORDS_BYTES_MAX: Final = 32
"""Longer texts are hashed by XXH3: from about there on, its call costs less than a look at each word."""
KEY_BYTES_MAX: Final = 64 << 20
"""So many bytes a text may have by which rows are looked up, grouped or joined here."""
assert WORDS_BYTES_MAX < KEY_BYTES_MAX


def family(kind: pa.DataType) -> str | None:
    """Return a name that is equal for two types iff their equal values have equal numbers; None: it has none.

    >>> family(pa.int8()) == family(pa.int64()), family(pa.decimal128(9, 2)) == family(pa.decimal128(12, 2))
    (True, True)
    >>> family(pa.list_(pa.int8())) is None
    True
    """
    if pa.types.is_dictionary(kind):
        return family(kind.value_type)
    if pa.types.is_signed_integer(kind):
        return "integer"
    if pa.types.is_decimal128(kind):
        return f"decimal {kind.scale}"
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return f"timestamp {kind.tz is not None}"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_floating(kind) and kind.bit_width >= _FLOAT_BITS_MIN:
        return "float"
    return str(kind) if pa.types.is_boolean(kind) or pa.types.is_date32(kind) else None


_FLOAT_BITS_MIN: Final = 32


def hashes(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """Return a number per row, for columns that all have a `family`.

    Raises `CollectionError` if a text has more than `KEY_BYTES_MAX` bytes.
    """
    total = np.zeros(len(columns[0]), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            total = _mixed(total * _GOLDEN + _hashed(column))
    return total


def plain(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the column as one array, if one can hold it, whose values are there one by one."""
    array = column.combine_chunks()
    coded = isinstance(array, pa.Array) and pa.types.is_dictionary(array.type)
    return array.dictionary_decode() if coded else array


def _hashed(column: pa.ChunkedArray) -> Hashes:
    array = plain(column)
    if isinstance(array, pa.ChunkedArray):  # more than one array can hold
        return np.concatenate([_hashed(pa.chunked_array([chunk])) for chunk in array.chunks])
    values = _mixed(_words(array))
    if array.null_count:
        values = np.where(np.asarray(array.is_null()), _NULL, values)
    return values


def _words(array: pa.Array) -> Hashes:
    """Return 64 bits per value; those of a NULL are anything."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(array)
    if pa.types.is_decimal128(kind):
        lanes = fixed(array, np.dtype(np.uint64), 2)
        return np.asarray(_mixed(lanes[:, 1]) + lanes[:, 0])
    return bits(array)


def bits(array: pa.Array) -> Hashes:
    """Return the 64 bits of each number, date, time or truth; those of a NULL are anything."""
    kind = array.type
    if pa.types.is_floating(kind):
        values = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if pa.types.is_boolean(kind):
        return np.asarray(array.fill_null(False)).astype(np.uint64)
    whole = array.cast(pa.int32()) if pa.types.is_date32(kind) else array
    long = whole if kind == pa.int64() else whole.cast(pa.int64())
    return np.asarray(long.fill_null(0) if long.null_count else long).view(np.uint64)


def fixed(array: pa.Array, word: np.dtype[Any], words: int) -> np.ndarray[Any, Any]:
    """Return the ``words`` of each value."""
    buffer = array.buffers()[1]
    every = np.frombuffer(buffer, word, count=(array.offset + len(array)) * words)
    return every.reshape(-1, words)[array.offset :]


def _text(array: pa.Array) -> Hashes:
    """Hash short texts eight bytes at a time: all first words, then the second ones of those that have one, and so on.

    Long ones are hashed whole.
    """
    padded, starts, lengths = _letters(array)
    if len(lengths) and (longest := int(lengths.max())) > KEY_BYTES_MAX:
        raise CollectionError(
            f"a text of {longest:,} bytes is a key, and keys have at most {KEY_BYTES_MAX:,}: remove the row, or group "
            "or join by a digest of the text, such as sha2(text, 256)"
        )
    total = lengths.astype(np.uint64)
    rows, at = np.flatnonzero(lengths <= WORDS_BYTES_MAX), 0
    while len(rows := rows[lengths[rows] > at]):
        words = _word(padded, starts[rows] + at, lengths[rows] - at)
        total[rows] = _mixed(total[rows] * _GOLDEN + words)
        at += _WORD
    long, letters = np.flatnonzero(lengths > WORDS_BYTES_MAX), padded.data
    spans = zip(starts[long].tolist(), (starts + lengths)[long].tolist(), strict=True)
    total[long] = np.fromiter((xxh3_64_intdigest(letters[start:end]) for start, end in spans), np.uint64, len(long))
    return total


def first_word(array: pa.Array) -> Hashes:
    """Return the first eight bytes of each text, the first of them lowest; zeros for those that it does not have."""
    padded, starts, lengths = _letters(array)
    words = np.zeros(len(array), np.uint64)
    rows = np.flatnonzero(lengths)
    words[rows] = _word(padded, starts[rows], lengths[rows])
    return words


def _letters(array: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the bytes of all texts, padded by a word, and where each text begins, and its length.

    Of a slice they are its own bytes alone: else each slice of a table would cost as much as the whole.
    """
    large = array.cast(pa.large_string()).fill_null("")
    offsets = np.frombuffer(large.buffers()[1], np.int64, count=large.offset + len(large) + 1)[large.offset :]
    first, data = int(offsets[0]), large.buffers()[2]
    size = int(offsets[-1]) - first
    padded = np.zeros(size + _WORD, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size, first)
    return padded, offsets[:-1] - first, np.diff(offsets)


def _word(padded: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Hashes:
    """Return the words at ``starts``, of which so many bytes count."""
    words = padded[starts[:, None] + np.arange(_WORD)].view(np.uint64)[:, 0]
    left = np.minimum(lengths, _WORD).astype(np.uint64)
    return np.asarray(words & (np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - left * np.uint64(_WORD))))


def _mixed(values: Hashes) -> Hashes:
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
        return values ^ (values >> np.uint64(31))


def without_null(table: pa.Table) -> pa.Table:
    """Return the rows of ``table`` without those that have a NULL in any column."""
    return table.filter(_all_valid(table)) if any(column.null_count for column in table.columns) else table


def _all_valid(table: pa.Table) -> pa.ChunkedArray:
    valid = pc.is_valid(table.columns[0])
    for column in table.columns[1:]:
        valid = pc.and_(valid, pc.is_valid(column))
    return valid
