"""Table and Lake: what a format of tables implements, so that the shared session and driver can use it.

A commit of a table is atomic, and it says in itself which transaction of which *writer* (task, binding and key range)
it holds.  So whether a transaction is applied is read from the table, never from anything beside it, and it is applied
at most once: `Table.commit` succeeds only if nothing was committed since the snapshot in which it was seen to be due.

The *owner* of a table is the binding (task and state key) that fills it.  It changes when a backfill begins, so what an
older binding still wants to apply is refused from then on.  A binding that empties its table and gives it up stays
noted, so an older session of its task knows; any task may become the next owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from strandline.materialize.driver import Constraint
from strandline.materialize.drivers.staged.place import Place
from strandline.materialize.drivers.staged.shape import Shape
from strandline.materialize.protocol.holds import Holds


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
