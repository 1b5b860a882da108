"""Rows that a server sends one by one, in portions of few bytes.

A portion is bounded by bytes, because rows may be of any size: 5 000 rows of a megabyte are no small number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 4 << 20


def portions(rows: Iterable[bytes], *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> Iterator[list[bytes]]:
    """Yield all rows in their order, as many at once as both bounds allow; a row that is larger comes alone.

    No row is asked for before those that fill a portion are taken, but the one that no longer fits.

    >>> list(portions([b"a", b"b", b"cccccc", b"d"], bytes_max=3))
    [[b'a', b'b'], [b'cccccc'], [b'd']]
    """
    held, size = list[bytes](), 0
    for row in rows:
        if held and (len(held) == rows_max or size + len(row) > bytes_max):
            yield held
            held, size = [], 0
        held.append(row)
        size += len(row)
    if held:
        yield held
