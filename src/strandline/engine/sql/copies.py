"""Rows as often as they are there: SQL that gives copies, block by block, so that no array is as long as a count.

A row's count is a number for as long as possible; only what plain Spark has to look at (a query's multiset, the
members of a group) needs copies.  One array of so many elements would have to fit in memory, and could not be longer
than an int; `BLOCK` copies at a time do not.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.schema import DIFF

BLOCK: Final = 65_536
BLOCKS: Final = f"explode(sequence(0L, (greatest({DIFF}, 1L) - 1L) div {BLOCK}L))"
# A NULL count (a group without members) stays NULL: `least` would skip it.
_LEFT: Final = f"({DIFF} - {BLOCK}L * __block)"
_TIMES: Final = f"CAST(IF({_LEFT} > {BLOCK}L, {BLOCK}L, {_LEFT}) AS INT)"
COPIES: Final = f"explode(array_repeat(true, {_TIMES}))"


def lateral(*, outer: bool = False) -> str:
    """Return lateral views that give each row as often as its ``__diff`` says: a column ``__copy``.

    ``outer``: a row without a count is given once, its ``__copy`` NULL.
    """
    view = "LATERAL VIEW OUTER" if outer else "LATERAL VIEW"
    return f"{view} {BLOCKS} b AS __block {view} {COPIES} c AS __copy"


def of_rows(columns: str) -> str:
    """Return lateral views that give the fields of a column ``__row`` as ``columns``, as often as ``__diff`` says."""
    return f"LATERAL VIEW {BLOCKS} b AS __block LATERAL VIEW inline(array_repeat(__row, {_TIMES})) c AS {columns}"
