"""Transfer: the rows of one binding in one transaction, from the changes of its collection to the rows to store.

Rows are checked as they are read, and kept in a `Spool`: all are known before the first one is sent.

A delta binding may get the changes themselves.  With diffs, each change is one row.  Without diffs (and without a key),
a row that was inserted ``n`` times is ``n`` rows, and a deleted row is an error: the resource could not tell it from an
inserted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError
from strandline.materialize.protocol.greatest import NOT_KNOWN, Greatest, Key, greater, of_rows, ordered, up_to
from strandline.materialize.protocol.holds import EVERYTHING, Holds, require_held
from strandline.materialize.protocol.messages import EXISTS, unflagged
from strandline.materialize.protocol.task import Binding
from strandline.materialize.reduce.rows import Combining
from strandline.materialize.reduced import Reduced
from strandline.materialize.spool import Spool
from strandline.materialize.stores import Stores, key_ids, keys_of, with_existence
from strandline.problem import Problem, Stopped, Way

WENT: Final = Problem(
    "pushed-row-went",
    "{collection!r} into {resource!r}: the row {row} went, and nothing that is pushed says so",
    Stopped.ENDPOINT,
    (Way("drop the materialization, and create it with diffs, or with a KEY"),),
)


class Deltas:
    """The rows to store of a stream of batches, as in `messages.Store`."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def add(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows for the changes in ``batch``.

        Raises:
            DefinitionError: a row went, and the binding has no diffs to say so.
        """
        changes = pa.Table.from_batches([batch])
        rows = changes.select([column.name for column in self._binding.columns])
        if not self._binding.diffs:
            diffs = changes[DIFF].to_numpy()
            if (diffs < 0).any():
                raise self._took_away(changes, int(np.flatnonzero(diffs < 0)[0]))
            rows = rows.take(np.repeat(np.arange(len(diffs)), diffs))
        return unflagged(rows)

    def end(self) -> pa.Table | None:
        """Return None: no row waits for another one."""

    def _took_away(self, changes: pa.Table, place: int) -> DefinitionError:
        row = changes.select(list(self._binding.schema.names)).slice(place, 1).to_pylist()[0]
        about = {"collection": self._binding.collection, "resource": self._binding.resource}
        return DefinitionError(WENT.said(row=row, **about))


class Transfer:
    """Not for concurrent use, but for `keep`, which may be called while the rows are asked for.

    ``first``: the window begins with the collection.  ``holds``: what the endpoint can hold.
    """

    def __init__(self, binding: Binding, reduced: Reduced | None, *, first: bool, holds: Holds = EVERYTHING) -> None:
        self._binding = binding
        self._holds = holds
        self._reduced = reduced
        self._spool = Spool()
        self._loaded: Spool | None = None
        self._ordered = ordered(binding)
        self.greatest: Key | None = None
        """The greatest key of all rows; None if there is none, or such keys have no order."""
        if reduced is not None:
            self._making: Stores | Deltas | Combining = reduced.stream(first=first)
        else:
            self._making = Deltas(binding) if binding.diffs or not binding.key else Stores(binding)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._spool.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add changes.  Raises as `require_held`, `Stores.add`, `Deltas.add` and `Combining.add`."""
        require_held(self._binding, batch, self._holds)
        self._add(self._making.add(batch))

    def end(self) -> None:
        """All changes were added."""
        last = self._making.end()
        if last is not None:
            self._add(last)

    def _add(self, rows: pa.Table) -> None:
        self._spool.add(rows)
        if self._ordered:
            self.greatest = greater(self.greatest, of_rows(self._binding, rows))

    def asked(self, *, new: bool, stored: Greatest = NOT_KNOWN) -> Iterator[pa.Table]:
        """Yield the keys to load; ``new``: of rows that are said to be new, of which none may be there.

        ``stored``: the greatest keys that are there; those that are greater are left out.
        """
        self._loaded = None if new else Spool()
        for rows in self._spool.tables():
            keys = keys_of(self._binding, rows.filter(pc.invert(rows[EXISTS])) if new else rows)
            if self._reduced is not None:  # of a key there may be several rows, one after the other
                ids = key_ids(keys.columns)
                keys = keys.take(np.sort(np.unique(ids, return_index=True)[1]))
            if self._ordered and self._binding.state_key in stored:
                keys = up_to(self._binding, keys, stored[self._binding.state_key])
            if keys.num_rows:
                yield keys

    def keep(self, rows: pa.Table) -> pa.Table:
        """Keep what was loaded, as far as it decides what is stored; return a little of it, to say that it came."""
        if self._loaded is None:
            return rows
        self._loaded.add(rows if self._reduced is not None else keys_of(self._binding, rows))
        return rows.slice(0, 1)

    def stores(self) -> Iterator[pa.Table]:
        """Yield the rows to store, in bounded tables, as in `messages.Store`."""
        known = [] if self._loaded is None else list(self._loaded.tables())
        for rows in self._spool.tables():
            if self._reduced is not None:
                made = self._reduced.finish(rows, known)
            elif self._loaded is not None:
                made = with_existence(self._binding, rows, pa.concat_tables(known) if known else rows[:0])
            else:
                made = rows
            if made.num_rows:
                yield made

    def close(self) -> None:
        """Drop all rows."""
        self._spool.close()
        if self._loaded is not None:
            self._loaded.close()
