"""The tables of a materialization: create, check, load, store.

Every function works inside the caller's transaction.  Rows arrive as Arrow tables or streams whose columns are renamed
``c0, c1, ...``: a name from a user reaches SQL only through `sql.identifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra import types
from strandline.errors import CorruptionError, DefinitionError
from strandline.materialize.drivers.duckdb_checkpoints import TABLE
from strandline.materialize.drivers.duckdb_types import duckdb_type
from strandline.materialize.drivers.sql import Sql, compose, identifier, joined
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding, Checkpoint
from strandline.materialize.spool import Spool
from strandline.materialize.stores import second_row

CONTENTS_ROWS: Final = 10_000
"""Rows of a table that `contents` hands over; DuckDB rounds up to its vectors."""
_ROWS = identifier("strandline_rows")
"""The name under which an Arrow table is registered, in the schema `temp`."""
_TABLES = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND NOT temporary AND NOT internal"
_COLUMNS = """
SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main' AND database_name = ?
ORDER BY column_index"""


@dataclass(frozen=True, slots=True)
class Target:
    """A binding's table, and the pieces of its statements."""

    binding: Binding
    table: Sql
    columns: Sql
    placed: Sql
    match: Sql

    @staticmethod
    def of(connection: duckdb.DuckDBPyConnection, binding: Binding) -> Target:
        """Return the target of ``binding`` in the database that ``connection`` has open."""
        ((database,),) = connection.execute("SELECT current_database()").fetchall()
        names = binding.schema.names
        return Target(
            binding,
            compose("{d}.main.{t}", d=identifier(database), t=identifier(binding.resource)),
            joined(", ", map(identifier, names)),
            joined(", ", (identifier(f"c{i}") for i in range(len(names)))),
            joined(
                " AND ",
                (
                    compose("t.{k} IS NOT DISTINCT FROM r.{c}", k=identifier(k), c=identifier(f"c{names.index(k)}"))
                    for k in binding.key
                ),
            ),
        )


def fold(name: str) -> str:
    """Return ``name`` as DuckDB compares it: ASCII letters in lower case.

    >>> fold("Ab\u00c4")
    'ab\u00c4'
    """
    return "".join(char.lower() if char.isascii() else char for char in name)


def check_names(binding: Binding) -> None:
    """Raise `DefinitionError` if the resource or a column has a name that DuckDB or this driver does not allow."""
    identifier(binding.resource)
    if fold(binding.resource) == TABLE:
        raise DefinitionError(f"{binding.resource!r} cannot be filled: the driver keeps its checkpoints there")
    for column in binding.schema:
        identifier(column.name)


def fit(connection: duckdb.DuckDBPyConnection, binding: Binding, committed: Sequence[Checkpoint]) -> str:
    """Create the binding's table or check that it fits; return what was done as a sentence, or nothing.

    ``committed`` are the task's checkpoints: a table that one of them mentions belongs to this task.

    Raises:
        DefinitionError: the table was filled and is gone; or it has other columns; or it holds rows of another program.
    """
    target = Target.of(connection, binding)
    filled = any(checkpoint.of(binding.state_key) is not None for checkpoint in committed)
    ours = any(checkpoint.mentions(binding.resource) for checkpoint in committed)
    found = [name for (name,) in connection.execute(_TABLES).fetchall() if fold(name) == fold(binding.resource)]
    if not found:
        if filled:
            raise DefinitionError(
                f"table {binding.resource!r} is gone, though it was filled from {binding.collection!r}: "
                f"`strandline backfill` of {binding.collection!r} fills it again"
            )
        _create(connection, target)
        return f"created table {binding.resource!r}"
    there, wanted = _columns(connection, found[0]), _wanted(connection, binding)
    if there != wanted:
        if filled or not ours:
            raise DefinitionError(
                f"table {binding.resource!r} has the columns ({_text(there)}), "
                f"but {binding.collection!r} needs ({_text(wanted)}): drop the table, or choose another name"
            )
        connection.execute(compose("DROP TABLE {t}", t=target.table).text)
        _create(connection, target)
        return f"recreated table {binding.resource!r} for its new columns, to be filled from the start"
    if not ours and connection.execute(compose("SELECT 1 FROM {t} LIMIT 1", t=target.table).text).fetchall():
        raise DefinitionError(
            f"table {binding.resource!r} holds rows that this materialization did not write: "
            "drop the table, or choose another name"
        )
    if ours and not filled:
        return f"table {binding.resource!r} is filled from the start: its rows stay until the new ones replace them"
    return ""


def _create(connection: duckdb.DuckDBPyConnection, target: Target) -> None:
    connection.execute(compose("CREATE TABLE {t} ({c})", t=target.table, c=_declared(target.binding)).text)


def _declared(binding: Binding) -> Sql:
    return joined(
        ", ",
        (compose("{n} {t}", n=identifier(name), t=duckdb_type(kind)) for name, kind in types.columns(binding.schema)),
    )


def _columns(connection: duckdb.DuckDBPyConnection, table: str, database: str | None = None) -> list[tuple[str, str]]:
    ((current,),) = connection.execute("SELECT current_database()").fetchall()
    return [(name, kind) for name, kind in connection.execute(_COLUMNS, [table, database or current]).fetchall()]


def _wanted(connection: duckdb.DuckDBPyConnection, binding: Binding) -> list[tuple[str, str]]:
    """Return the columns in DuckDB's own spelling, because it has many spellings of one type."""
    scratch = identifier("strandline_scratch")
    connection.execute(compose("CREATE TEMP TABLE {s} ({c})", s=scratch, c=_declared(binding)).text)
    try:
        return _columns(connection, "strandline_scratch", "temp")
    finally:
        connection.execute(compose("DROP TABLE temp.main.{s}", s=scratch).text)


def _text(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def contents(connection: duckdb.DuckDBPyConnection, binding: Binding, take: Callable[[pa.Table], None]) -> None:
    """Hand all rows of the binding's table to ``take``, columns in the order of its schema, so many at a time."""
    columns = joined(", ", (identifier(c.name) for c in binding.schema))
    text = compose("SELECT {c} FROM {t}", c=columns, t=identifier(binding.resource)).text
    for batch in connection.sql(text).to_arrow_reader(CONTENTS_ROWS):
        take(pa.Table.from_batches([batch]))


def load(connection: duckdb.DuckDBPyConnection, target: Target, keys: pa.Table) -> pa.Table:
    """Return the stored rows that have one of ``keys``, under the binding's column names."""
    names = target.binding.schema.names
    _register(connection, keys.rename_columns([f"c{names.index(k)}" for k in target.binding.key]))
    found = connection.sql(
        compose(
            "SELECT {c} FROM {t} AS t SEMI JOIN {r} AS r ON {m}",
            c=_qualified(target),
            t=target.table,
            r=_ROWS,
            m=target.match,
        ).text
    ).to_arrow_table()
    connection.unregister("strandline_rows")
    return found.rename_columns(list(names))


def _qualified(target: Target) -> Sql:
    names = target.binding.schema.names
    return joined(", ", (compose("t.{n} AS {c}", n=identifier(n), c=identifier(f"c{i}")) for i, n in enumerate(names)))


def empty(connection: duckdb.DuckDBPyConnection, target: Target) -> None:
    """Remove every row."""
    connection.execute(compose("DELETE FROM {t}", t=target.table).text)


def placed(binding: Binding, rows: pa.Table) -> pa.Table:
    """Return the rows of a `messages.Store` under the column names that `store` expects."""
    names = binding.schema.names
    columns = [*(f"c{i}" for i in range(len(names))), "present", "gone"]
    return rows.select([*names, EXISTS, DELETE]).rename_columns(columns)


def store(connection: duckdb.DuckDBPyConnection, target: Target, rows: Spool) -> None:
    """Replace, insert and delete `placed` rows, whose flags say whether a key exists; the flags must be right.

    Each statement streams the rows, so its memory does not grow with their number.

    Raises:
        DefinitionError: a key that should be new exists already; the message names it.
        CorruptionError: rows that should exist are missing: another program changed the table.
    """
    if not rows.rows:
        return
    present, gone = identifier("present"), identifier("gone")
    parts = {"t": target.table, "r": _ROWS, "m": target.match, "present": present, "gone": gone}
    expected = sum(int(pc.sum(table["present"]).as_py() or 0) for table in rows.tables())
    if expected < rows.rows:
        _register(connection, rows.relation())
        _refuse_known(connection, target, present)
    if expected:
        _register(connection, rows.relation())
        deleted = connection.execute(
            compose("DELETE FROM {t} AS t USING {r} AS r WHERE r.{present} AND {m}", **parts).text
        ).fetchall()
        if deleted != [(expected,)]:
            raise CorruptionError(
                f"table {target.binding.resource!r}: of {expected} rows to replace or delete {deleted[0][0]} were "
                "there: another program changed the table; `strandline backfill` fills it again"
            )
    _register(connection, rows.relation())
    connection.execute(
        compose(
            "INSERT INTO {t} ({c}) SELECT {p} FROM {r} WHERE NOT {gone}", c=target.columns, p=target.placed, **parts
        ).text
    )
    connection.unregister("strandline_rows")


def _refuse_known(connection: duckdb.DuckDBPyConnection, target: Target, present: Sql) -> None:
    known = connection.sql(
        compose(
            "SELECT {p} FROM {r} AS r SEMI JOIN {t} AS t ON {m} WHERE NOT r.{present} LIMIT 1",
            p=joined(", ", (compose("r.{c}", c=c) for c in _key_places(target))),
            r=_ROWS,
            t=target.table,
            m=target.match,
            present=present,
        ).text
    ).to_arrow_table()
    if known.num_rows:
        raise second_row(target.binding, known.rename_columns(list(target.binding.key)))


def _key_places(target: Target) -> list[Sql]:
    names = target.binding.schema.names
    return [identifier(f"c{names.index(k)}") for k in target.binding.key]


def _register(connection: duckdb.DuckDBPyConnection, rows: pa.Table | pa.RecordBatchReader) -> None:
    connection.register("strandline_rows", rows)
