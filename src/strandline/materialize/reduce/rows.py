"""Reductions of rows: a collection's rows are documents, and so are the rows of an endpoint.

`Rows.combine` reduces the rows of each key associatively, `Rows.finish` fully, with the rows that the endpoint holds.
Flat rows whose columns all take a simple strategy are reduced by `columns`; others become documents (`cells`), and are
reduced by `Reducer`.  `Combining` does the former over a stream of batches.

Rows of one key are adjacent, and in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.protocol.messages import flagged, unflagged
from strandline.materialize.protocol.refusals import IRREDUCIBLE, REDUCED_WENT
from strandline.materialize.reduce.annotations import Strategy
from strandline.materialize.reduce.columns import DoesNotFitError, Groups, Ints, folds, reader, to_array, writer
from strandline.materialize.reduce.folding import Reducer
from strandline.materialize.reduce.schemas import MISSING, Deleted, Document, NotReducibleError, Value, pointer, shown
from strandline.materialize.stores import key_ids

OPEN_ROWS_MAX: Final = 65_536
"""How many rows of one key are kept between two batches; more are combined at once."""
_KEEPS_KEYS: Final = frozenset({Strategy.FIRST, Strategy.LAST, Strategy.MAXIMIZE, Strategy.MINIMIZE})

_ORDERLESS: Final = frozenset({Strategy.SUM, Strategy.MAXIMIZE, Strategy.MINIMIZE})


class Rows:
    """Reduces rows of ``columns`` by the annotations of ``schema``, of which the columns are the properties.

    ``item``: the materialization, by which messages name it.

    Raises:
        DefinitionError: the schema has a fault; a strategy is not for the type of its column; a key column has a
            strategy that makes other keys of it.
    """

    def __init__(self, schema: Mapping[str, Any], key: Sequence[str], columns: pa.Schema, item: str = "") -> None:
        self.columns = pa.schema([(field.name, _plain(field.type)) for field in columns])
        if not key:
            raise DefinitionError("rows without a key cannot be reduced: declare the columns of the key")
        self._key = tuple(key)
        self._item = item
        self._reducer = Reducer.of(schema, [pointer((name,)) for name in key], item)
        root = self._reducer.schema.root
        top = root.always()
        self._places = {field.name: top.property(field.name) for field in columns}
        for name in key:
            strategy = self._places[name].always().annotation.strategy
            if strategy not in _KEEPS_KEYS:
                raise DefinitionError(f"the key column {name!r} cannot be reduced by {strategy}: remove its annotation")
        self._folds = folds(self._reducer.schema, self.columns)

    @property
    def flat(self) -> bool:
        """Whether the rows are reduced as columns."""
        return self._folds is not None

    @property
    def orderless(self) -> bool:
        """Whether the order in which the rows of a key were written makes no difference."""
        named = zip(self.columns.names, self._folds or (), strict=self.flat)
        return self.flat and all(name in self._key or fold.strategy in _ORDERLESS for name, fold in named)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows of each key combined: one, or several in order if a step is not associative.

        Raises:
            DefinitionError: a strategy met values that it is not for, or a result does not fit its column.  The message
                names key, location and values.
            InvalidUsage: the rows of one key are not adjacent.
        """
        rows = self._taken(rows)
        if not rows.num_rows:
            return rows
        groups = self._groups(self.ids(rows))
        if self._folds is not None:
            return self._folded(rows, groups)
        documents = self._documents(rows, loaded=False)
        return self._table([each for group in _slices(documents, groups) for each in self._reducer.combine(group)])

    def finish(self, loaded: pa.Table | None, combined: pa.Table) -> pa.Table:
        """Return the rows to store: one per key of ``combined``, in its order, with `EXISTS` and `DELETE`.

        ``loaded``: the endpoint's rows of these keys, in any order; at most one per key.  A deletion of a key that the
        endpoint does not hold is left out.

        Raises:
            DefinitionError: as `combine`.
            InvalidUsage: two loaded rows have one key, or the rows of one key are not adjacent.
        """
        combined = self._taken(combined)
        held = self._taken(loaded) if loaded is not None else combined.slice(0, 0)
        if not combined.num_rows:
            return unflagged(combined)
        ids = self.ids(pa.concat_tables([held, combined]))
        groups = self._groups(ids[held.num_rows :])
        place = np.full(ids.max() + 1, -1, np.int64)
        place[ids[held.num_rows :]] = groups.numbers
        of_held = place[ids[: held.num_rows]]
        held, of_held = held.filter(pa.array(of_held >= 0)), of_held[of_held >= 0]
        exists = np.bincount(of_held, minlength=len(groups.starts))
        if (exists > 1).any():
            row = int(np.flatnonzero(of_held == np.flatnonzero(exists > 1)[0])[0])
            raise InvalidUsage(f"the endpoint loaded two rows with the key ({self._key_text(held, row)})")
        if self._folds is not None:
            order = np.argsort(np.concatenate([of_held, groups.numbers]), kind="stable")
            sizes = np.diff(groups.starts, append=groups.rows) + exists
            both = pa.concat_tables([held, combined]).take(pa.array(order))
            stored = self._folded(both, Groups((np.cumsum(sizes) - sizes).astype(np.int64), len(order)))
            return flagged(stored, exists > 0, np.zeros(len(exists), bool))
        return self._finished(held, of_held, combined, groups)

    def _finished(self, held: pa.Table, of_held: Ints, combined: pa.Table, groups: Groups) -> pa.Table:
        known = dict(zip(of_held.tolist(), self._documents(held, loaded=True), strict=True))
        stored: list[Document] = []
        exists, deletes = [], []
        for at, documents in enumerate(_slices(self._documents(combined, loaded=False), groups)):
            found = self._reducer.finish(known.get(at), documents)
            gone = isinstance(found, Deleted)
            if not gone or at in known:
                stored.append(documents[-1] if isinstance(found, Deleted) else found)
                exists.append(at in known)
                deletes.append(gone)
        return flagged(self._table(stored), np.array(exists, bool), np.array(deletes, bool))

    def settled(self, changes: pa.Table) -> pa.Table:
        """Return ``changes`` without the additions that later ones took back, and without these; the latest goes first.

        ``changes`` hold all changes of each of their keys, in the order of time.
        """
        diffs = changes[DIFF].to_numpy()
        if (diffs > 0).all():
            return changes
        ids = key_ids([changes[name] for name in self.columns.names])
        left = diffs.copy()
        added: dict[int, list[int]] = {}
        for row in np.flatnonzero(np.isin(ids, ids[diffs < 0])).tolist():
            earlier = added.setdefault(int(ids[row]), [])
            if left[row] > 0:
                earlier.append(row)
            while left[row] < 0 and earlier:
                taken = min(-left[row], left[earlier[-1]])
                left[row] += taken
                left[earlier[-1]] -= taken
                if not left[earlier[-1]]:
                    earlier.pop()
        changes = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, pa.array(left))
        return changes.filter(pa.array(left != 0))

    def expanded(self, changes: pa.Table) -> pa.Table:
        """Return a row for each time that ``changes`` add it.

        Raises:
            DefinitionError: a row was removed: the collection is not append-only.
        """
        diffs = changes[DIFF].to_numpy()
        if (diffs < 1).any():
            row = int(np.flatnonzero(diffs < 1)[0])
            raise DefinitionError(REDUCED_WENT.said(key=self._key_text(changes, row), item=self._item))
        return self._taken(changes).take(pa.array(np.repeat(np.arange(len(diffs)), diffs)))

    def ids(self, rows: pa.Table) -> Ints:
        """Return a number per row, equal for equal keys."""
        return key_ids([rows[name] for name in self._key])

    def _groups(self, ids: Ints) -> Groups:
        groups = Groups.of(ids)
        if len(groups.starts) != np.count_nonzero(np.bincount(ids)):
            raise InvalidUsage(f"the rows of one key ({', '.join(self._key)}) are not adjacent: sort them by the key")
        return groups

    def _taken(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.columns.names).cast(self.columns)

    def _folded(self, rows: pa.Table, groups: Groups) -> pa.Table:
        assert self._folds is not None
        made = []
        for name, fold in zip(self.columns.names, self._folds, strict=True):
            column = rows[name].combine_chunks()
            try:
                made.append(fold(column, groups))
            except DoesNotFitError as error:
                raise self._fault(rows, int(groups.starts[error.group]), name, error.why) from error
        return pa.Table.from_arrays(made, schema=self.columns)

    def _documents(self, rows: pa.Table, *, loaded: bool) -> list[Document]:
        documents: list[dict[str, Value]] = [{} for _ in range(rows.num_rows)]
        for field in self.columns:
            read = reader(field.type, self._places[field.name], loaded=loaded)
            for row, raw in enumerate(rows[field.name].to_pylist()):
                try:
                    value = read(raw)
                except NotReducibleError as error:
                    raise self._fault(rows, row, field.name, error) from error
                if value is not MISSING:
                    documents[row][field.name] = value
        return list(documents)

    def _table(self, documents: list[Document]) -> pa.Table:
        made = []
        for field in self.columns:
            write = writer(field.type, self._places[field.name])
            values: list[Value] = []
            for document in documents:
                try:
                    values.append(write(document.get(field.name, MISSING)))
                except NotReducibleError as error:
                    raise self._fault_of(document, field.name, error) from error
            made.append(self._column(values, field, documents))
        for document in documents:
            others = sorted(document.keys() - set(self.columns.names))
            if others:
                raise self._fault_of(document, others[0], "there is no such column")
        return pa.Table.from_arrays(made, schema=self.columns)

    def _column(self, values: list[Value], field: pa.Field, documents: list[Document]) -> pa.Array:
        try:
            return to_array(values, field.type)
        except NotReducibleError:
            for document, value in zip(documents, values, strict=True):  # find the one
                try:
                    to_array([value], field.type)
                except NotReducibleError as error:
                    raise self._fault_of(document, field.name, error) from error
            raise

    def _fault(self, rows: pa.Table, row: int, name: str, why: object) -> DefinitionError:
        strategy = self._places[name].always().annotation.strategy
        return self._irreducible(self._key_text(rows, row), f"at {pointer((name,))}, {strategy}: {why}")

    def _fault_of(self, document: Document, name: str, why: object) -> DefinitionError:
        named = ", ".join(f"{each} = {_text(document.get(each))}" for each in self._key)
        return self._irreducible(named, f"at {pointer((name,))}: {why}")

    def _irreducible(self, key: str, why: str) -> DefinitionError:
        return DefinitionError(IRREDUCIBLE.said(key=key, why=why, item=self._item))

    def _key_text(self, rows: pa.Table, row: int) -> str:
        return ", ".join(f"{name} = {_text(rows[name][row].as_py())}" for name in self._key)


class Combining:
    """`Rows.combine` over a stream of batches, whose rows have a column ``__diff`` too (`materialize.feed`).

    Of the rows of a key that may go on in the next batch `OPEN_ROWS_MAX` are kept, and one batch; or twice as many as
    they can be combined to, if these are more.

    ``first``: the batches are all that there ever was, so what was removed again is left out (`Rows.settled`).  Until a
    key has ended, all of its rows may be removed again, so all are kept.
    """

    def __init__(self, rows: Rows, *, first: bool = False) -> None:
        self._rows = rows
        self._first = first
        self._open: list[pa.Table] = []
        self._open_rows = 0
        self._open_rows_max = OPEN_ROWS_MAX

    def add(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the combined rows of the keys that ended in ``batch``.

        Raises as `Rows.combine` and `Rows.expanded`.
        """
        changes = pa.Table.from_batches([batch])
        new = changes if self._first else self._rows.expanded(changes)
        if not new.num_rows:
            return self._nothing
        before = [self._open[-1].slice(len(self._open[-1]) - 1)] if self._open else []
        ids = self._rows.ids(pa.concat_tables([*before, new]))
        others = np.flatnonzero(ids != ids[-1])
        if not len(others):
            self._keep(new)
            return self._nothing
        ended = int(others[-1]) + 1 - len(before)
        self._open.append(new.slice(0, ended))
        combined = self.end()
        self._keep(new.slice(ended))
        return combined

    def end(self) -> pa.Table:
        """Return the combined rows of the last keys, if there are any.  Raises as `add`."""
        kept, self._open = self._open, []
        self._open_rows, self._open_rows_max = 0, OPEN_ROWS_MAX
        if not kept:
            return self._nothing
        rows = pa.concat_tables(kept)
        return self._rows.combine(self._rows.expanded(self._rows.settled(rows)) if self._first else rows)

    @property
    def _nothing(self) -> pa.Table:
        return self._rows.columns.empty_table()

    def _keep(self, rows: pa.Table) -> None:
        self._open.append(rows)
        self._open_rows += rows.num_rows
        if self._open_rows > self._open_rows_max:
            together = pa.concat_tables(self._open)
            fewer = self._rows.settled(together) if self._first else self._rows.combine(together)
            self._open, self._open_rows = [fewer] if fewer.num_rows else [], fewer.num_rows
            self._open_rows_max = max(OPEN_ROWS_MAX, 2 * fewer.num_rows)


def _text(value: Value) -> str:
    return "NULL" if value is None else shown(value)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _slices(documents: list[Document], groups: Groups) -> Iterator[list[Document]]:
    for begin, end in pairwise([*groups.starts.tolist(), groups.rows]):
        yield documents[begin:end]
