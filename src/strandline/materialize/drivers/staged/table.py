"""What a format of tables implements for the shared session and driver: `Table`, `Lake`, and columns to compare.

A commit of a table is atomic, and holds which transaction of which *writer* (task, binding and key range) it is.  So
whether a transaction is applied is read from the table, never from anything beside it, and it is applied at most once:
`Table.commit` succeeds only if nothing was committed since the snapshot in which the transaction was seen to be due.

The *owner* of a table is the binding (task and state key) that fills it.  It changes when a backfill begins; from then
on, transactions of an older binding are refused.  A binding that empties its table and gives it up stays noted, so that
an older session of its task is refused; any task may become the next owner.

Columns are compared by name and by the canonical text of their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import RESERVED, quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.materialize.driver import Constraint
from strandline.materialize.drivers.staged.place import Place
from strandline.materialize.protocol.holds import Holds
from strandline.materialize.protocol.task import Binding

DELETED: Final = f"{RESERVED}deleted"
"""Of a table that is given the last row of each key that changed: whether the key is gone, and this was its row."""
Shape: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts of types; a text that `parse` refuses is of a column that no binding has."""


def text(kind: Type) -> str:
    """Return the one text of a type.

    >>> text(Array(Struct((("a b", Decimal(10, 2)), ("c", Atom("int"))))))
    'array<struct<`a b`:decimal(10,2),`c`:int>>'
    """
    match kind:
        case Atom(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return f"array<{text(element)}>"
        case Struct(fields):
            return f"struct<{','.join(f'{quote(name)}:{text(field)}' for name, field in fields)}>"


def latest_only(binding: Binding) -> bool:
    """Return whether a table is given the last row of each key that changed, and so must say which keys are gone."""
    return binding.delta and bool(binding.key) and not binding.diffs


def shape_of(binding: Binding) -> Shape:
    """Return the columns that a binding's table has.  Raises `DefinitionError` naming a column that cannot be kept."""
    own = tuple((column.name, text(parse(column.name, column.type))) for column in binding.columns)
    return (*own, (DELETED, "boolean")) if latest_only(binding) else own


def arrow_schema(shape: Shape) -> pa.Schema:
    """Return the Arrow schema of rows of a table.  Raises `DefinitionError` naming a column that cannot be kept."""
    return pa.schema([pa.field(name, arrow(parse(name, kind))) for name, kind in shape])


def written(shape: Iterable[tuple[str, str]]) -> str:
    """Return columns as a message shows them.

    >>> written((("a", "int"), ("b c", "date")))
    '`a` int, `b c` date'
    """
    return ", ".join(f"{quote(name)} {kind}" for name, kind in shape)


def missing(there: Shape, wanted: Shape) -> Shape | None:
    """Return the columns that a table lacks and that can be added to it; None: it differs in another way.

    >>> missing((("a", "int"),), (("b", "date"), ("a", "int"))), missing((("a", "int"),), (("a", "bigint"),))
    ((('b', 'date'),), None)
    """
    if set(there) - set(wanted):
        return None
    return tuple(each for each in wanted if each not in there)


def aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` with exactly the columns of ``schema``; a column that is not there is NULL."""
    names = rows.column_names
    columns = [
        _cast(rows.column(names.index(field.name)), field.type)
        if field.name in names
        else pa.chunked_array([pa.nulls(len(rows), field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return values if values.type == kind else values.cast(kind)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of rows: its name below the table's directory, how many rows it has, and its size in bytes."""

    name: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one moment.  ``reached``: the last transaction of the writer that was asked for; 0: none.

    ``token``: what `Table.commit` needs to know that nothing was committed since.
    """

    token: Any
    shape: Shape
    owner: str
    reached: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One commit: these pieces go and come, and ``writer`` has reached ``number``.

    ``upto``: the time before which the table has everything then, for people who read its history.
    """

    writer: str
    number: int
    upto: int
    removed: tuple[Piece, ...]
    added: tuple[Piece, ...]


class Table(Protocol):
    """One table of a lake.  Every call blocks, and may raise `Unavailable`, `ConfigError` or `DefinitionError`."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def place(self) -> Place:
        """Where its files are."""
        ...

    @property
    def joins(self) -> bool:
        """Whether small files are joined although no row of them goes: no other program does it."""
        ...

    def snapshot(self, writer: str) -> Snapshot | None:
        """Return the table as it is now; None: there is none."""
        ...

    def create(self, shape: Shape, owner: str) -> bool:
        """Make the table.  Return whether it was made; False: there is one."""
        ...

    def own(self, seen: Snapshot, owner: str, added: Shape) -> bool:
        """Give the table another owner, and further columns.  Return whether it was done; False: see `commit`."""
        ...

    def recreate(self, seen: Snapshot, shape: Shape, owner: str) -> bool:
        """Give the table other columns and no rows, in one commit.  Return whether it was done; False: see `commit`."""
        ...

    def commit(self, seen: Snapshot, change: Change) -> bool:
        """Commit a change.  Return whether it was done; False: the table is not as it was ``seen``, nothing was done.

        Raises:
            Unavailable: it is not known whether it was done; the next snapshot shows it.
        """
        ...

    def write(self, name: str, rows: Iterator[pa.Table], shape: Shape) -> Piece | None:
        """Write rows into a new file below ``name`` (its end is the format's); None: there were no rows."""
        ...

    def read(self, piece: Piece, shape: Shape, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of a piece, in bounded tables of ``columns`` of a table of ``shape``."""
        ...


class Lake(Protocol):
    """Where the tables of an endpoint are.  It touches nothing itself."""

    def table(self, resource: str) -> Table:
        """Return a table.  Raises `DefinitionError` if no table can have this name."""
        ...

    def stored(self, shape: Shape) -> Shape:
        """Return the columns as a table of this format has them: with types that it knows."""
        ...

    @property
    def holds(self) -> Holds:
        """The values that this format can hold."""
        ...

    def verdict(self, name: str, kind: str) -> Constraint:
        """Return whether a column, with the text of its type, can be stored.

        Raises `DefinitionError` if no column can have this name.
        """
        ...
