"""Consolidation and digests as SQL text: what every path that stages rows has in common.

*Consolidate*: add up the diffs of equal (row, time), drop what adds up to zero.  *Digest*: Σ diff × hash(row), in two
lanes (`persist.shard.batch.Digest`).  The first hash is Spark's ``xxhash64`` over a null bitmap (it skips NULLs itself,
so (NULL, 1) and (1, NULL) would clash), the columns and ``__error``; the second runs over the same values behind the
first hash, so it differs in every step and needs no bitmap of its own (measured: a quarter of the digest's cost).  Time
is excluded.  Both depend on the normalised row alone, so parts of equal rows have equal digests however they were
written.

Sums are exact without modular arithmetic (ANSI refuses to overflow): each 64-bit hash is split into two 32-bit halves
centred on zero, whose weighted sums fit a bigint as long as Σ|diff| of a batch is below 2**32, and Python puts them
together modulo 2**64.  More than that raises Spark's overflow error; it is never a wrong digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra import types
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.frames import forms
from strandline.persist.shard.batch import Digest

LANES: Final = ("__hash_low", "__hash_high")
_BITS: Final = 63  # bits of one word of the null bitmap: the sign bit is left alone
_HALF: Final = 32
_MASK: Final = (1 << _HALF) - 1
_CENTRE: Final = 1 << (_HALF - 1)
_LANE: Final = 1 << (2 * _HALF)


def normal_columns(schema: Schema, present: Sequence[str], *, normalise: bool) -> list[str]:
    """Return the select list of an update frame with columns ``present``: columns, error (if there), time, diff.

    A column that is not present is NULL: rows of the err half need none of them.
    """
    lower = {name.lower() for name in present}
    selected = []
    for name, kind in types.columns(schema):
        quoted = quote(name)
        if name.lower() not in lower:
            value = f"CAST(NULL AS {_type(schema, name)})"
        else:
            value = forms.normalised(quoted, kind) if normalise else quoted
        selected.append(value if value == quoted else f"{value} AS {quoted}")
    return [*selected, *([ERROR] if ERROR in lower else []), TIME, DIFF]


def consolidated(schema: Schema, updates: str, *, has_error: bool) -> str:
    """Return SQL of the normalised updates (SQL too) with equal rows at equal times added up, zeros dropped."""
    keys = ", ".join([*map(quote, schema.names), *([ERROR] if has_error else []), TIME])
    return f"SELECT {keys}, sum({DIFF}) AS {DIFF} FROM ({updates}) GROUP BY {keys} HAVING sum({DIFF}) <> 0"


def hashed(schema: Schema, updates: str, *, has_error: bool) -> str:
    """Return SQL of the normalised updates (SQL too) with the two hashes of their rows as the columns `LANES`."""
    low, high = low_hash(schema, has_error=has_error), high_hash(schema, has_error=has_error)
    return f"SELECT *, {high} AS {LANES[1]} FROM (SELECT *, {low} AS {LANES[0]} FROM ({updates}))"


def low_hash(schema: Schema, *, has_error: bool) -> str:
    """Return SQL of a normalised row's first hash, over a null bitmap and the values."""
    flags = [f"{quote(name)} IS NULL" for name, _ in types.columns(schema)]
    flags.append(f"{ERROR} IS NULL" if has_error else "true")
    return f"xxhash64({', '.join(_bitmap(flags) + _values(schema, has_error))})"


def high_hash(schema: Schema, *, has_error: bool, low: str = LANES[0]) -> str:
    """Return SQL of its second hash, which starts from the first (the SQL ``low``), bitmap and all."""
    return f"xxhash64({', '.join([low, *_values(schema, has_error)])})"


def digest_sums(schema: Schema, *, has_error: bool) -> dict[str, str]:
    """Return the aggregates over normalised updates, by name, from which `digest_of` makes a digest.

    They name the hashes by their whole text: Spark sees that it is the same and computes each once a row, while columns
    of their own would have every row copied twice, to put them there and to take them away.
    """
    low = low_hash(schema, has_error=has_error)
    sums = {}
    for lane, text in zip(LANES, (low, high_hash(schema, has_error=has_error, low=low)), strict=True):
        sums[f"{lane}_upper"] = f"sum({DIFF} * shiftright({text}, {_HALF}))"
        sums[f"{lane}_lower"] = f"sum({DIFF} * (({text} & {_MASK}L) - {_CENTRE}L))"
    return sums


def digest_of(sums: Mapping[str, int | None], diffs: int) -> Digest:
    """Return the digest from the values of `digest_sums` (NULL over no rows) and Σ diff."""
    low, high = (
        ((sums[f"{lane}_upper"] or 0) << _HALF) + (sums[f"{lane}_lower"] or 0) + _CENTRE * diffs for lane in LANES
    )
    return Digest(low % _LANE, high % _LANE)


def digest_of_table(table: pa.Table) -> Digest:
    """Return the digest of collected rows that carry their hashes in the columns `LANES`."""
    diffs = _unsigned(table[DIFF])
    low, high = (pc.sum(pc.multiply(diffs, _unsigned(table[lane]))).as_py() or 0 for lane in LANES)
    return Digest(low, high)


def sort_columns(schema: Schema, sort: Sequence[str]) -> list[str]:
    """Return the order of rows in a part: ``sort``, or all columns, then time.  Every type we keep has an order."""
    return [*(sort or schema.names), TIME]


def _bitmap(flags: Sequence[str]) -> list[str]:
    words = [flags[start : start + _BITS] for start in range(0, len(flags), _BITS)]
    return ["(" + " | ".join(f"if({flag}, {1 << bit}L, 0L)" for bit, flag in enumerate(word)) + ")" for word in words]


def _values(schema: Schema, has_error: bool) -> list[str]:
    values = [forms.hashed(quote(name), kind) for name, kind in types.columns(schema)]
    return [*values, ERROR] if has_error else values


def _unsigned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same 64 bits as unsigned numbers, whose products and sums wrap modulo 2**64."""
    return pa.chunked_array([chunk.view(pa.uint64()) for chunk in column.chunks], type=pa.uint64())


def _type(schema: Schema, name: str) -> str:
    return next(c.type for c in schema if c.name == name)
