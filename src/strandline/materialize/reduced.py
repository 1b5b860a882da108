"""The rows of a binding that are reduced, by the annotations of its JSON Schema (`materialize/reduce/`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from difflib import get_close_matches

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import TIME
from strandline.errors import DefinitionError
from strandline.materialize.feed import Batches
from strandline.materialize.protocol.messages import DELETE, EXISTS, unflagged
from strandline.materialize.protocol.task import Binding
from strandline.materialize.reduce.rows import Combining, Rows
from strandline.materialize.reduce.schemas import properties


class Reduced:
    """Reduces the rows of one binding: those that came associatively, and in full with those that are stored.

    Raises:
        DefinitionError: the schema is no JSON, or its annotations have a fault; the message names the binding.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        columns = pa.schema([(name, arrow(kind)) for name, kind in types.columns(binding.schema)])
        try:
            self._rows = Rows(msgspec.json.decode(binding.reduce, type=dict), binding.key, columns, binding.task)
        except (msgspec.MsgspecError, DefinitionError) as error:
            raise DefinitionError(
                f"{binding.collection!r} into {binding.resource!r} cannot be reduced: {error}"
            ) from error

    def require_columns(self) -> None:
        """Raise `DefinitionError` if the schema names a property that is no column: it would do nothing."""
        names = self._binding.schema.names
        for name, place in sorted(properties(msgspec.json.decode(self._binding.reduce, type=dict)).items()):
            if name not in names:
                close = get_close_matches(name, names, n=3)
                said = f"did you mean {', '.join(map(repr, close))}?" if close else f"it has {', '.join(names)}"
                raise DefinitionError(
                    f"{self._binding.collection!r} into {self._binding.resource!r} cannot be reduced: {place}: the "
                    f"collection has no column {name!r}; {said}"
                )

    def stream(self, *, first: bool) -> Combining:
        """Return what combines the rows of one window, which come in the order of key and time.

        ``first``: the window begins with the collection, so its rows add up to contents.
        """
        return Combining(self._rows, first=first)

    def whole(self, since: int) -> Whole:
        """Return what reduces a whole collection, whose history is compacted up to ``since``."""
        return Whole(self._rows, since)

    def finish(self, rows: pa.Table, loaded: Sequence[pa.Table]) -> pa.Table:
        """Return what to store, as in `messages.Store`, of combined ``rows`` and the stored rows that have their keys.

        Raises:
            DefinitionError: a strategy met values that it is not for.
        """
        if self._binding.delta:
            return unflagged(rows)
        return self._rows.finish(pa.concat_tables(loaded) if loaded else None, rows)


class Whole:
    """Reduces all that a collection holds to what a table of it must hold.

    ``mixed``: two rows of one key may have been written in another order, because compaction has given them one time;
    and the order may make a difference.
    """

    def __init__(self, rows: Rows, since: int) -> None:
        self.mixed = False
        self._rows = rows
        self._since = since
        self._last: list[pa.Table] = []

    async def tables(self, changes: Batches) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows, given all changes in the order of key and time (`Feed.changes`).

        Raises `DefinitionError` if the rows of a key cannot be reduced.
        """
        combining = Combining(self._rows, first=True)
        async with aclosing(changes) as batches:
            async for batch in batches:
                self._look(pa.Table.from_batches([batch]))
                yield self._finished(combining.add(batch))
        yield self._finished(combining.end())

    def _look(self, changes: pa.Table) -> None:
        early = changes.filter(pc.less_equal(changes[TIME], self._since))
        if not early.num_rows or self._rows.orderless:
            return
        ids = self._rows.ids(pa.concat_tables([*self._last, early]))
        self.mixed = self.mixed or bool((ids[1:] == ids[:-1]).any())
        self._last = [early.slice(early.num_rows - 1)]

    def _finished(self, combined: pa.Table) -> pa.Table:
        return self._rows.finish(None, combined).drop_columns([EXISTS, DELETE])
