"""What the SQL drivers ask of a database: connections that block, and a place to run work on them.

Each endpoint implements both by its own client library, and turns that library's errors into ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from strandline.algebra.types import Type
from strandline.materialize.drivers.sql.text import Sql
from strandline.materialize.spool import Spool

T = TypeVar("T")

Value: TypeAlias = str | int
"""A parameter of a statement."""
Take: TypeAlias = Callable[[pa.Table], None]
"""Is given rows, a bounded number at a time."""
READ_ROWS: Final = 10_000
"""About how many rows `Connection.read` hands over at once."""


class OutcomeUnknownError(Exception):
    """Whether a transaction was committed, and whose the claim is, has to be looked up."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows as the database is given them: under which name, in which columns (plain words), of which types.

    ``declared``: the columns as CREATE TABLE takes them.  ``key``: those that are matched with a table's.
    """

    table: Sql
    names: tuple[str, ...]
    types: tuple[Type, ...]
    declared: Sql
    key: tuple[str, ...]


class Connection(Protocol):
    """One session of the database; nothing is in a transaction that was not begun.

    Every call may raise `DefinitionError` (the database refuses a statement or a value), `Unavailable` (it does not
    answer) or `OutcomeUnknownError` (another session changed the same rows, so this transaction cannot be committed).
    """

    def begin(self, *, frozen: bool = False) -> None:
        """Begin a transaction.  ``frozen``: it only reads, and all of it sees one moment."""
        ...

    def commit(self) -> None:
        """Commit.  Raises `OutcomeUnknownError` for every failure."""
        ...

    def rollback(self) -> None:
        """Undo the transaction.  Does nothing if the connection is lost."""
        ...

    def change(self, statement: Sql, *values: Value) -> int:
        """Run a statement; return how many rows it changed."""
        ...

    def query(self, statement: Sql, *values: Value) -> list[tuple[object, ...]]:
        """Return all rows of a short answer."""
        ...

    def read(self, statement: Sql, names: Sequence[str], types: Sequence[Type], take: Take) -> None:
        """Hand the rows of an answer to ``take``, as columns of these names and types."""
        ...

    def stage(self, staged: Staged, rows: Spool) -> None:
        """Let statements of this transaction read ``rows``, which are not empty, as ``staged.table``.

        Their columns are those of ``staged``, in its order.  Rows that were staged there before are dropped.
        """
        ...

    def append(self, table: Sql, columns: Sequence[Sql], types: Sequence[Type], rows: Spool) -> int:
        """Add ``rows``, which are not empty, to a table, whose ``columns`` are in the order of theirs.

        Returns how many rows the table took: a trigger may have it take fewer.
        """
        ...


class Database(Protocol):
    """One database, as one session of ours or one call uses it.  ``str`` is what messages call it."""

    async def run(self, work: Callable[[Connection], T], *, again: bool = False) -> T:
        """Return what ``work`` returns, which is run in a thread.

        ``again``: if another session changes the same rows, it is begun anew.  If this is cancelled, it returns once
        the work has come to its end.

        Raises:
            ConfigError: the database cannot be reached as configured.
            Unavailable: it is locked, or does not answer; try again later.
            DefinitionError: it refused a statement or a value.
            OutcomeUnknownError: see `Connection`.
        """
        ...

    async def close(self) -> None:
        """End the connections.  May be called twice."""
        ...
