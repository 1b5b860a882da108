"""Stage: the rows of one binding in one transaction, on their way into files that nothing names yet.

Rows to store become pieces of the table as they are; a commit only has to name them.  The keys of rows that go (those
that are replaced or deleted) become Parquet files beside them, which the apply reads.  Every call blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.applying import PIECE_BYTES, Mask, PieceForm
from strandline.materialize.drivers.staged.table import DELETED, Piece, Shape, Table, aligned, arrow_schema, latest_only
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding


class Stage:
    """What is staged of one binding, below ``directory`` of its table."""

    def __init__(self, table: Table, binding: Binding, shape: Shape, directory: str, place: int) -> None:
        self._table = table
        self._binding = binding
        self._shape = shape
        self._schema = arrow_schema(shape)
        self._directory = directory
        self._place = place
        self._rows: list[pa.Table] = []
        self._keys: list[pa.Table] = []
        self._bytes = 0
        self.pieces: list[PieceForm] = []
        self.keys: list[PieceForm] = []

    def add(self, stored: pa.Table) -> None:
        """Take the rows of a `messages.Store`."""
        binding = self._binding
        if binding.delta:
            added = stored.append_column(DELETED, stored[DELETE]) if latest_only(binding) else stored
        else:
            added = stored.filter(pc.invert(stored[DELETE]))
            self._keep(self._keys, stored.filter(stored[EXISTS]).select(list(binding.key)))
        self._keep(self._rows, aligned(added, self._schema))
        if self._bytes >= PIECE_BYTES:
            self.end()

    def end(self) -> None:
        """Write what is not in a file yet."""
        rows, self._rows = self._rows, []
        keys, self._keys = self._keys, []
        self._bytes = 0
        if rows:
            name = f"{self._directory}/rows-{self._place}-{len(self.pieces)}"
            piece = self._table.write(name, iter(rows), self._shape)
            assert piece is not None, "there are rows"
            self.pieces.append(PieceForm(piece.name, piece.rows, piece.size))
        if keys:
            self.keys.append(self._written(keys))

    def _keep(self, kept: list[pa.Table], rows: pa.Table) -> None:
        if rows.num_rows:
            kept.append(rows)
            self._bytes += rows.nbytes

    def _written(self, keys: Sequence[pa.Table]) -> PieceForm:
        schema = pa.schema([self._schema.field(self._schema.names.index(each)) for each in self._binding.key])
        name = f"{self._directory}/keys-{self._place}-{len(self.keys)}{parquet.SUFFIX}"
        place = self._table.place
        rows = parquet.write(place, name, iter([aligned(each, schema) for each in keys]), schema)
        return PieceForm(name, rows, place.size(name))


def unstage(table: Table, directory: str) -> None:
    """Remove the files of a transaction that no log will ever name."""
    for name in table.place.below(directory):
        table.place.remove(name)


def found(table: Table, piece: Piece, shape: Shape, names: Sequence[str], mask: Mask) -> pa.Table:
    """Return the rows of ``piece`` that ``mask`` chooses."""
    return pa.concat_tables(list(table.read(piece, shape, names))).filter(pa.array(mask))
