"""The rows of a binding that are reduced, by the annotations of its JSON Schema (`materialize/reduce/`)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.errors import DefinitionError
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding
from strandline.materialize.reduce.rows import Combining, Rows


class Reduced:
    """Reduces the rows of one binding: those that came associatively, and in full with those that are stored.

    Raises:
        DefinitionError: the schema is no JSON, or its annotations have a fault; the message names the binding.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        columns = pa.schema([(name, arrow(kind)) for name, kind in types.columns(binding.schema)])
        try:
            self._rows = Rows(msgspec.json.decode(binding.reduce, type=dict), binding.key, columns)
        except (msgspec.MsgspecError, DefinitionError) as error:
            raise DefinitionError(
                f"{binding.collection!r} into {binding.resource!r} cannot be reduced: {error}"
            ) from error

    def stream(self) -> Combined:
        """Return what combines the rows of one window."""
        return Combined(self._rows)

    def finish(self, rows: pa.Table, loaded: Sequence[pa.Table]) -> pa.Table:
        """Return the rows to store, as in `messages.Store`, given the stored ones that have keys of ``rows``.

        Raises:
            DefinitionError: a strategy met values that it is not for.
        """
        if self._binding.delta:
            return rows
        return self._rows.finish(pa.concat_tables(loaded) if loaded else None, rows.drop_columns([EXISTS, DELETE]))


class Combined:
    """The rows of a window, in the order of key and time, combined as far as that is associative."""

    def __init__(self, rows: Rows) -> None:
        self._combining = Combining(rows)

    def add(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows of the keys that ended in ``batch``, not yet flagged (`Reduced.finish` does).

        Raises:
            DefinitionError: a row went; or a strategy met values that it is not for.
        """
        return _unflagged(self._combining.add(batch))

    def end(self) -> pa.Table | None:
        """Return the rows of the last key.  Raises as `add`."""
        return _unflagged(self._combining.end())


def _unflagged(rows: pa.Table) -> pa.Table:
    neither = pa.array(np.zeros(len(rows), bool))
    return rows.append_column(EXISTS, neither).append_column(DELETE, neither)
