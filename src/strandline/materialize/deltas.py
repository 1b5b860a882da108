"""Turns the net changes of a window into the rows of a delta binding that is given the changes themselves.

With diffs, each change is one row.  Without (and without a key), a row that came ``n`` times is ``n`` rows, and a row
that went is an error: the resource could not tell it from one that came.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError
from strandline.materialize.protocol.messages import unflagged
from strandline.materialize.protocol.task import Binding
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
