"""The endpoint `duckdb`: its options, how it is opened, and its dialect and types.

    CREATE MATERIALIZATION m INTO DUCKDB (path = '/data/out.duckdb') AS v

The runtime hands a driver Arrow values, which DuckDB casts as it reads them.  So only declared types are translated:
those of a table's columns.

The tables have no index of the key: DuckDB's unique constraints refuse a key that is deleted and inserted again in one
transaction, and a hash join finds rows as fast.

Source: Spark SQL "Data Types" (simple strings); DuckDB "Data Types".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, LiteralString

from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.duckdb.file import DuckDBFile
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Found
from strandline.materialize.drivers.sql.driver import SqlDriver, TableOptions
from strandline.materialize.protocol.holds import Days, Holds
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock

_ATOMS: Final = {
    "boolean": Sql("BOOLEAN"),
    "tinyint": Sql("TINYINT"),
    "smallint": Sql("SMALLINT"),
    "int": Sql("INTEGER"),
    "bigint": Sql("BIGINT"),
    "float": Sql("FLOAT"),
    "double": Sql("DOUBLE"),
    "string": Sql("VARCHAR"),
    "binary": Sql("BLOB"),
    "date": Sql("DATE"),
    "timestamp": Sql("TIMESTAMP WITH TIME ZONE"),
    "timestamp_ntz": Sql("TIMESTAMP"),
}


def duckdb_type(kind: Type) -> Sql:
    """Return the DuckDB type for ``kind``.

    >>> duckdb_type(Array(Decimal(10, 2))).text
    'DECIMAL(10,2)[]'
    >>> duckdb_type(Struct((("a, b", Atom("int")), ("c", Atom("timestamp_ntz"))))).text
    'STRUCT("a, b" INTEGER, "c" TIMESTAMP)'
    """
    match kind:
        case Atom(name):
            return _ATOMS[name]
        case Decimal(precision, scale):
            return Sql(f"DECIMAL({precision},{scale})")
        case Array(element):
            return compose("{element}[]", element=duckdb_type(element))
        case Struct(fields):
            named = (compose("{name} {type}", name=identifier(name), type=duckdb_type(field)) for name, field in fields)
            return compose("STRUCT({fields})", fields=joined(", ", named))


_TABLES = Sql("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' AND NOT temporary AND NOT internal")
_VIEWS = Sql("SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT temporary AND NOT internal")
_COLUMNS: LiteralString = """
SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL FROM duckdb_columns()
WHERE table_name = {1} AND schema_name = 'main' AND database_name = {d}
ORDER BY column_index"""

_GUARD: LiteralString = """
INSERT INTO {table} VALUES ('', 0, 0, 1, '{{}}') ON CONFLICT DO UPDATE SET fence = fence + 1"""

HOLDS: Final = Holds(
    "DuckDB",
    dates=Days(-2_147_483_646, 2_147_483_646, "dates to 5881580-07-10; later ones are its infinity"),
    times=Days(-106_751_991, 106_751_990, "times to 294247-01-09; later ones are its infinity"),
)


class DuckDBDialect(Dialect):
    """The schema `main` of the file that a connection has open."""

    system: ClassVar[str] = "DuckDB"
    holds: ClassVar[Holds] = HOLDS
    same: ClassVar[LiteralString | None] = "{a} IS NOT DISTINCT FROM {b}"

    def column_type(self, kind: Type, *, key: bool) -> Sql:
        """See `Dialect.column_type`."""
        return duckdb_type(kind)

    def tables(self, connection: Connection) -> list[str]:
        """See `Dialect.tables`."""
        return [str(name) for (name,) in connection.query(_TABLES)]

    def other(self, connection: Connection, name: str) -> str | None:
        """See `Dialect.other`."""
        views = (self.fold(str(there)) for (there,) in connection.query(_VIEWS))
        return "a view" if self.fold(name) in views else None

    def guard(self, connection: Connection, checkpoints: Sql, materialization: str) -> None:
        """Change one row: two transactions that do so conflict, though they add different ranges.  No name is empty."""
        connection.change(compose(_GUARD, table=checkpoints))

    def columns(self, connection: Connection, table: str, *, temporary: bool = False) -> list[Found]:
        """See `Dialect.columns`."""
        where = Sql("'temp'") if temporary else Sql("current_database()")
        rows = connection.query(self.statement(_COLUMNS, d=where), table)
        return [Found(str(name), str(kind), bool(required)) for name, kind, required in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBOptions(TableOptions):
    """Where the database is, and how tables are kept."""

    path: str = option(PLACE, "The DuckDB file; created if missing. Or a reference: `env:NAME`, `file:PATH`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in schema `main`; only Strandline writes it.")


def _open(options: DuckDBOptions, clock: Clock) -> SqlDriver:
    return SqlDriver(KIND.spec, DuckDBDialect(), lambda: DuckDBFile(clock, Path(options.path)), soft=options.soft)


KIND: Final = DriverKind("duckdb", DuckDBOptions, DuckDBResource, "docs/endpoints/duckdb.md", _open)
