"""A DuckDB file that other programs read too: opened for one piece of work, then closed.

DuckDB locks the file for the process that has it open, so no connection is kept: `DuckDBFile.run` connects, works, and
closes, and other programs may read in between.  If another process holds the lock, `run` waits with back-off, up to a
limit.  DuckDB blocks, so the work runs in a thread.  A connection reads Arrow tables directly.

Source: DuckDB "Concurrency".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import duckdb
import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Type
from strandline.errors import ConfigError, DefinitionError, Unavailable
from strandline.materialize.drivers.sql.connection import (
    READ_ROWS,
    Connection,
    OutcomeUnknownError,
    Sql,
    Staged,
    Take,
    Value,
    compose,
    identifier,
    joined,
)
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.refusals import REFUSED, UNOPENED
from strandline.materialize.spool import Spool
from strandline.store.clock import Clock

_APPENDED: Final = "strandline_appended"
_BOTH_FIRST: Final = 'Duplicate key "materialization: ,'
"""What DuckDB says to the second of two sessions that are the first of a file."""


class DuckDBConnection:
    """See `Connection`.  Staged rows are registered anew for each statement, since a stream can be read once."""

    def __init__(self, inner: duckdb.DuckDBPyConnection) -> None:
        self._inner = inner
        self._staged: tuple[str, Spool] | None = None

    def begin(self, *, frozen: bool = False) -> None:
        """See `Connection.begin`: every transaction sees one moment."""
        self._inner.begin()

    def commit(self) -> None:
        """See `Connection.commit`."""
        self._unstage()
        try:
            self._inner.commit()
        except duckdb.Error as error:
            raise OutcomeUnknownError(sentence(error)) from error

    def rollback(self) -> None:
        """See `Connection.rollback`."""
        self._unstage()
        self._inner.rollback()

    def change(self, statement: Sql, *values: Value) -> int:
        """See `Connection.change`."""
        rows: list[Any] = self.query(statement, *values)
        return int(rows[0][0]) if rows else 0

    def query(self, statement: Sql, *values: Value) -> list[tuple[object, ...]]:
        """See `Connection.query`."""
        return self._run(statement, *values).fetchall()

    def read(self, statement: Sql, names: Sequence[str], types: Sequence[Type], take: Take) -> None:
        """See `Connection.read`."""
        # Arrow ends a column's name at its first NUL.
        places = joined(", ", (identifier(f"c{n}") for n in range(len(names))))
        text = compose("WITH found ({p}) AS ({q}) SELECT * FROM found", p=places, q=statement)
        schema = pa.schema([pa.field(name, arrow(kind)) for name, kind in zip(names, types, strict=True)])
        self._register()
        for batch in self._inner.sql(text.text).to_arrow_reader(READ_ROWS):
            if batch.num_rows:
                take(pa.Table.from_batches([batch]).rename_columns(list(names)).cast(schema))

    def stage(self, staged: Staged, rows: Spool) -> None:
        """See `Connection.stage`."""
        self._unstage()
        self._staged = staged.table.text.strip('"'), rows

    def append(self, table: Sql, columns: Sequence[Sql], types: Sequence[Type], rows: Spool) -> int:
        """See `Connection.append`."""
        self._inner.register(_APPENDED, rows.relation())
        try:
            return self.change(
                compose(
                    "INSERT INTO {t} ({c}) SELECT * FROM {r}",
                    t=table,
                    c=joined(", ", columns),
                    r=identifier(_APPENDED),
                )
            )
        finally:
            self._inner.unregister(_APPENDED)

    def _run(self, statement: Sql, *values: Value) -> duckdb.DuckDBPyConnection:
        self._register()
        try:
            return self._inner.execute(statement.text, list(values) if values else None)
        except duckdb.TransactionException as error:  # another session has raised the fence, or is about to
            raise OutcomeUnknownError(sentence(error)) from error
        except duckdb.ConstraintException as error:
            if _BOTH_FIRST not in str(error):
                raise
            raise OutcomeUnknownError(sentence(error)) from error

    def _register(self) -> None:
        if self._staged is not None:
            name, rows = self._staged
            self._inner.register(name, rows.relation())

    def _unstage(self) -> None:
        if self._staged is not None:
            self._inner.unregister(self._staged[0])
            self._staged = None


def sentence(error: Exception) -> str:
    r"""Return the first line of DuckDB's message, without its prefixes.

    >>> sentence(ValueError("IO Error: Cannot open file: No such file\n\nLINE 1: ..."))
    'Cannot open file: No such file'
    """
    first = str(error).strip().partition("\n")[0]
    return re.sub(r"^(?:[A-Z][\w-]* )+Error: ", "", first)


T = TypeVar("T")

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
LOCK_WAIT_S: Final = 15.0
assert PAUSE_FIRST_S < PAUSE_MAX_S < LOCK_WAIT_S

FORMS: Final = "SET SESSION TimeZone = 'UTC'; SET SESSION default_collation = ''"
"""Connections of one process to one file share settings that another part of the process may have made."""
_FULL: Final = "No space left"
"""What the system says of a full disk; DuckDB's own error is the same for all commits that fail."""
_HOLDER: Final = re.compile(r"lock is held in (?P<program>.*?) ?\(PID (?P<pid>\d+)\)")


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """The work's result."""

    value: T


@dataclass(frozen=True, slots=True)
class _Undone:
    """The work was not begun, or was not committed as far as is known; ``why``: what a message says of the file."""

    why: str


def _locked(holder: str) -> _Undone:
    return _Undone(f"is locked by {holder}; close it there and try again")


class DuckDBFile:
    """One file.  ``connect`` is DuckDB's own, or a double of it."""

    def __init__(
        self,
        clock: Clock,
        path: Path,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        connect: Callable[[str], duckdb.DuckDBPyConnection] = duckdb.connect,
    ) -> None:
        self._clock = clock
        self._path = path
        self._lock_wait_s = lock_wait_s
        self._connect = connect

    def __str__(self) -> str:
        return f"DuckDB file {self._path}"

    async def run(self, work: Callable[[Connection], T], *, again: bool = False) -> T:
        """Return what ``work`` returns, given a connection that is closed afterwards.

        ``again``: if another transaction of this process changes the same rows, it is begun anew.

        Raises:
            ConfigError: the file cannot be opened at all.
            Unavailable: it is locked, or DuckDB failed; try again later.
            DefinitionError: DuckDB refused a statement or a value.
            OutcomeUnknownError: another transaction of this process changes the same rows, or COMMIT failed.
        """
        waited, pause = 0.0, PAUSE_FIRST_S
        while True:
            outcome = await to_its_end(partial(self._attempt, work, again))
            if isinstance(outcome, _Done):
                return outcome.value
            if waited >= self._lock_wait_s:
                raise Unavailable(f"{self} {outcome.why}")
            await self._clock.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, PAUSE_MAX_S)

    async def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _attempt(self, work: Callable[[Connection], T], again: bool) -> _Done[T] | _Undone:
        try:
            connection = self._connect(str(self._path))
        except duckdb.ConnectionException:
            return _locked("another connection of this process that opened it in another mode")
        except duckdb.IOException as error:
            holder = _HOLDER.search(str(error))
            if holder is not None:
                return _locked(f"process {holder['pid']} ({holder['program']})")
            if "lock" in str(error).lower():
                return _locked("another process")
            raise ConfigError(UNOPENED.said(endpoint=self, why=sentence(error))) from error
        except duckdb.Error as error:
            if "Unique file handle conflict" in str(error):  # the class of this error depends on DuckDB's version
                return _locked("another connection of this process, which is about to close")
            raise
        try:
            connection.execute(FORMS)
            return _Done(work(DuckDBConnection(connection)))
        except OutcomeUnknownError as error:
            if not again:
                raise
            if _FULL in str(error):
                return _Undone(f"cannot be written, for its disk is full: make room there and try again ({error})")
            return _locked("another transaction of this process")
        except (duckdb.ProgrammingError, duckdb.DataError, duckdb.IntegrityError) as error:
            raise DefinitionError(REFUSED.said(endpoint=self, why=sentence(error))) from error
        except duckdb.Error as error:
            raise Unavailable(f"{self} failed: {sentence(error)}") from error
        finally:
            connection.close()
