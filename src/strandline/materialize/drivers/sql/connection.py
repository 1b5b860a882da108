"""What the SQL drivers ask of a database: composed SQL text, connections that block, and a place to run work on them.

Each endpoint implements `Connection` and `Database` with its own client library, and turns that library's errors into
ours.  If another session got in the way of a transaction, the transaction is begun anew.

SQL text is composed, never formatted: an `Sql` value is trusted, a string is not.  A template is a literal of this
program; only `Sql` values fill its ``{name}`` holes, and `identifier` is the only way to turn a foreign name into
`Sql`.  Values never become text: they are bound as parameters or arrive as Arrow tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Final, LiteralString, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from strandline.algebra.types import Type
from strandline.errors import DefinitionError, Unavailable
from strandline.materialize.spool import Spool
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True)
class Sql:
    """Text that is SQL and nothing else."""

    text: str


def compose(template: LiteralString, **holes: Sql) -> Sql:
    """Return the template with its holes filled in.

    >>> compose("SELECT * FROM {t}", t=identifier('a"; --')).text
    'SELECT * FROM "a""; --"'
    """
    parts: list[str] = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            parts.append(holes[name].text)
    return Sql("".join(parts))


def joined(separator: LiteralString, parts: Iterable[Sql]) -> Sql:
    """Return the parts with ``separator`` between them.

    >>> joined(", ", [identifier("a"), identifier("b")]).text
    '"a", "b"'
    """
    return Sql(separator.join(part.text for part in parts))


def identifier(name: str) -> Sql:
    """Return any ``name`` as a quoted identifier of standard SQL.

    >>> identifier('a"b').text
    '"a""b"'

    Raises:
        DefinitionError: the name is empty, or is no text that can be encoded.
    """
    if not name:
        raise DefinitionError("a name is empty: SQL has no empty identifiers")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DefinitionError(f"the name {name!r} is not text: it holds half of a surrogate pair") from error
    return Sql('"' + name.replace('"', '""') + '"')


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


ATTEMPTS_MAX: Final = 8
PAUSE_FIRST_S: Final = 0.05


async def begun_anew(attempt: Callable[[], Awaitable[T]], place: object, clock: Clock, *, again: bool) -> T:
    """Return what ``attempt`` returns; if ``again``, make it up to `ATTEMPTS_MAX` times, each pause twice as long.

    ``place``: what messages call the database.  Raises as `Database.run`.
    """
    attempts, pause = ATTEMPTS_MAX if again else 1, PAUSE_FIRST_S
    while True:
        attempts -= 1
        try:
            return await attempt()
        except OutcomeUnknownError as error:
            if not again:
                raise
            if not attempts:
                raise Unavailable(f"{place} is busy with the same rows or tables: {error}") from error
        await clock.sleep(pause)
        pause *= 2
