"""The rows of a binding that are reduced, by the annotations of its JSON Schema (`materialize/reduce/`)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.errors import DefinitionError
from strandline.materialize.protocol.messages import unflagged
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

    def stream(self, *, first: bool) -> Combining:
        """Return what combines the rows of one window, which come in the order of key and time.

        ``first``: the window begins with the collection, so its rows add up to contents.
        """
        return Combining(self._rows, first=first)

    def finish(self, rows: pa.Table, loaded: Sequence[pa.Table]) -> pa.Table:
        """Return what to store, as in `messages.Store`, of combined ``rows`` and the stored rows that have their keys.

        Raises:
            DefinitionError: a strategy met values that it is not for.
        """
        if self._binding.delta:
            return unflagged(rows)
        return self._rows.finish(pa.concat_tables(loaded) if loaded else None, rows)
