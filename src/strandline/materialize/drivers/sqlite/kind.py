"""The endpoint `sqlite`: its options, how it is opened, and its dialect.

    CREATE MATERIALIZATION m INTO SQLITE OPTIONS (path '/data/out.db') AS v KEY (id)

A column's type is only a preference in SQLite: a value that does not fit is stored as it is.  So a decimal is a text of
all its digits, since as a number it would become a double; and NaN, which SQLite would store as NULL, is the text
``NaN``.

Source: https://www.sqlite.org/datatype3.html, https://www.sqlite.org/rowidtable.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, LiteralString

from strandline.algebra.schema import shown
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.errors import DefinitionError
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Found, Pairs
from strandline.materialize.drivers.sql.driver import SqlDriver, TableOptions
from strandline.materialize.drivers.sqlite.file import SQLiteFile
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock

_TYPES: Final = {
    "boolean": Sql("BOOLEAN"),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), Sql("INTEGER")),
    **dict.fromkeys(("float", "double"), Sql("REAL")),
    **dict.fromkeys(("string", "date", "timestamp", "timestamp_ntz"), Sql("TEXT")),
    "binary": Sql("BLOB"),
}
_ROW_IDS: Final = ("rowid", "_rowid_", "oid")
"""What a row's number is called, unless a column has the name."""
_TABLES: Final = Sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, 7) <> 'sqlite_'")
_COLUMNS: LiteralString = """
SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info({1}, {2}) ORDER BY cid"""
_OTHER: Final = Sql("SELECT name, type FROM sqlite_schema WHERE type IN ('view', 'index')")
_INDEXES: LiteralString = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = {1}"


class SQLiteDialect(Dialect):
    """The tables of one file."""

    system: ClassVar[str] = "SQLite"
    text: ClassVar[Sql] = Sql("TEXT")
    name_text: ClassVar[Sql] = Sql("TEXT")
    same: ClassVar[LiteralString | None] = "{a} IS {b}"
    widen: ClassVar[LiteralString | None] = None
    relax: ClassVar[LiteralString | None] = None

    def identifier(self, name: str) -> Sql:
        """See `Dialect.identifier`."""
        if "\0" in name:
            raise DefinitionError(f"the name {shown(name)} has a NUL character, at which SQLite would cut it")
        return identifier(name)

    def check_table(self, name: str, columns: Sequence[str]) -> None:
        """See `Dialect.check_table`."""
        if self.fold(name).startswith("sqlite_"):
            raise DefinitionError(f"{name!r} cannot be filled: SQLite keeps names that begin with 'sqlite_' for itself")
        if not self._row_ids(columns):
            raise DefinitionError(
                f"{name!r} has columns {', '.join(map(repr, _ROW_IDS))}, so nothing is left to call a row's number by"
            )

    def column_type(self, kind: Type, *, key: bool) -> Sql:
        """See `Dialect.column_type`."""
        match kind:
            case Atom(name):
                return _TYPES[name]
            case Array() | Struct() if key:
                raise DefinitionError("an array or a struct cannot be part of a key here: it is stored as JSON")
            case Decimal() | Array() | Struct():
                return Sql("TEXT")

    def tables(self, connection: Connection) -> list[str]:
        """See `Dialect.tables`."""
        return [str(name) for (name,) in connection.query(_TABLES)]

    def columns(self, connection: Connection, table: str, *, temporary: bool = False) -> list[Found]:
        """See `Dialect.columns`."""
        rows = connection.query(self.statement(_COLUMNS), table, "temp" if temporary else "main")
        return [Found(str(name), str(kind), bool(required)) for name, kind, required in rows]

    def other(self, connection: Connection, name: str) -> str | None:
        """See `Dialect.other`."""
        found = {self.fold(str(there)): kind for there, kind in connection.query(_OTHER)}
        kind = found.get(self.fold(name))
        return None if kind is None else f"{'an' if kind == 'index' else 'a'} {kind}"

    def indexes(self, connection: Connection, table: str) -> list[str]:
        """See `Dialect.indexes`."""
        return [str(name) for (name,) in connection.query(self.statement(_INDEXES), table)]

    def placeholder(self, number: int) -> Sql:
        """See `Dialect.placeholder`."""
        return Sql(f"?{number}")

    def index(self, name: Sql, table: Sql, key: Sequence[tuple[Sql, Type]]) -> Sql | None:
        """See `Dialect.index`: it lets keys with NULL be twice, but rows are found by it."""
        columns = joined(", ", (column for column, _ in key))
        return compose("CREATE UNIQUE INDEX {i} ON {t} ({k})", i=name, t=table, k=columns)

    def delete(self, pairs: Pairs, condition: Sql) -> Sql:
        """See `Dialect.delete`."""
        return compose("DELETE FROM {t} WHERE {w}", t=pairs.table, w=self._among(pairs, condition))

    def update(self, pairs: Pairs, column: Sql, value: Sql, condition: Sql) -> Sql:
        """See `Dialect.update`."""
        among = self._among(pairs, condition)
        return compose("UPDATE {t} SET {n} = {v} WHERE {w}", t=pairs.table, n=column, v=value, w=among)

    def _among(self, pairs: Pairs, condition: Sql) -> Sql:
        return compose(
            "{i} IN (SELECT t.{i} FROM {r} AS r CROSS JOIN {t} AS t WHERE {m} AND {f})",
            i=self._row_ids(pairs.columns)[0],
            t=pairs.table,
            r=pairs.staged,
            m=pairs.match,
            f=condition,
        )

    def _row_ids(self, columns: Sequence[str]) -> list[Sql]:
        taken = {self.fold(name) for name in columns}
        return [Sql(name) for name in _ROW_IDS if name not in taken]


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLiteOptions(TableOptions):
    """Where the database is, and how tables are kept."""

    path: str = option(PLACE, "The SQLite file; created if missing. Or a reference: `env:NAME`, `file:PATH`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLiteResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table; only Strandline writes it.")


def _open(options: SQLiteOptions, _: Clock) -> SqlDriver:
    return SqlDriver(KIND.spec, SQLiteDialect(), lambda: SQLiteFile(Path(options.path)), soft=options.soft)


KIND: Final = DriverKind("sqlite", SQLiteOptions, SQLiteResource, "docs/endpoints/sqlite.md", _open)
