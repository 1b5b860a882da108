"""A connection to a DuckDB file, which reads Arrow tables as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Type
from strandline.materialize.drivers.sql.connection import READ_ROWS, OutcomeUnknownError, Staged, Take, Value
from strandline.materialize.drivers.sql.text import Sql, compose, identifier, joined
from strandline.materialize.spool import Spool

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
