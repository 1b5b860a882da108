"""Parts of large contents, found by what a small frame holds: look-ups, pruned scans, and filters that may let pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import pyarrow as pa

from strandline.algebra.conditions import Condition
from strandline.algebra.first import First
from strandline.algebra.schema import Schema
from strandline.persist.handles.contents import Contents, Reads, Rows


class LookUps(Reads, Protocol):
    """Finds the rows that a small window touches.  Each call may return more rows than asked for, never fewer."""

    async def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[tuple[Rows, Sequence[str]]],
        *,
        nulls: bool,
        first: tuple[First, Rows] | None = None,
        span: bool = False,
        read: Collection[str] | None = None,
    ) -> Rows | None:
        """Return the rows of ``old`` whose ``columns`` have the values that some row of ``keys`` has in its columns.

        Without columns these are all rows, or if there are ``keys`` but no row in them, none.  Perhaps more rows are
        returned, never fewer, and none that was withdrawn; at ``old.advance``.  ``nulls``: NULL equals NULL; else it
        equals nothing.  ``read``: only these columns are returned, ``columns`` among them.  ``old`` begins at time 0.
        None: reading all of it is the better way, or the only one.

        ``first``: of the rows with one key (all rows, without columns) only the first matter, after any part of these
        updates has been added to ``old``.  So as many more are returned as the updates take away.

        ``span``: returns the rows whose one column has a value from the least to the greatest of the keys' values, of
        an exact type.  None if one of these is NULL, or if the diffs of ``keys`` are not 0 in all at each time.

        Raises `CorruptionError` as `read` does.
        """
        ...

    async def peek(
        self, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None = None
    ) -> pa.Table | None:
        """Return the rows of ``old`` whose ``columns`` have the values of a row of ``keys``: from memory, in no job.

        Exactly these, each as often as it is there, but at most ``limit`` of them, in any order.  ``keys`` has those
        columns in their order, of their own Arrow types; NULL equals NULL, and NaN equals NaN.  ``old`` begins at time
        0 and all its times are advanced to one.  If ``keys`` has no row, nothing is found, and ``old`` is brought into
        memory, or updated there.

        None: it is not in memory, or not at this time, or more rows are found than are handed over well.

        Raises `CorruptionError` as `read` does.
        """
        ...

    async def prune(self, old: Contents, column: str, keys: Sequence[tuple[Rows, str]], *, nulls: bool) -> Rows | None:
        """Return the rows of ``old`` whose ``column`` is between the least and the greatest value of ``keys`` (lazy).

        Those are values in a column of each.  ``nulls``: the rows with NULL too; they matter if a key is NULL.  Perhaps
        more are returned, never fewer.  None: reading all of ``old`` is as good, or the only way.  Raises
        `CorruptionError` as `read` does.
        """
        ...

    async def narrowed(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        """Return ``rows`` without those for which one of ``conditions`` is not true; some of these may remain."""
        ...

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """Return the updates of ``rows`` whose row occurs in ``to`` (lazy); the result may contain others too."""
        ...
