"""The endpoint `postgres`: its options, how it is opened, and its dialect.

    CREATE MATERIALIZATION m INTO POSTGRES OPTIONS (host 'db', database 'shop', user 'strandline',
        password 'env:PG_PASSWORD', schema 'reports') AS v KEY (id)

The dialect needs version 15 or newer: MERGE, and unique indexes in which NULL equals NULL.  A key is matched by ``=``,
or by IS NULL if it holds NULL: IS NOT DISTINCT FROM would compare every row with every other.

Source: PostgreSQL's manual, "MERGE", "Lexical Structure", "System Columns", "Data Types".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, LiteralString

from strandline import extras
from strandline.algebra.schema import shown
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.connections.postgres import NAME_BYTES_MAX, PostgresConnection
from strandline.errors import DefinitionError
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Found, Pairs
from strandline.materialize.drivers.sql.driver import SqlDriver, TableOptions
from strandline.materialize.protocol.holds import Days, Holds
from strandline.options import TEXT, option
from strandline.store.clock import Clock

_TYPES: Final = {
    "boolean": Sql("boolean"),
    "tinyint": Sql("smallint"),
    "smallint": Sql("smallint"),
    "int": Sql("integer"),
    "bigint": Sql("bigint"),
    "float": Sql("real"),
    "double": Sql("double precision"),
    "string": Sql("text"),
    "binary": Sql("bytea"),
    "date": Sql("date"),
    "timestamp": Sql("timestamp with time zone"),
    "timestamp_ntz": Sql("timestamp without time zone"),
}
_OF_THE_SYSTEM: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_TABLES: Final = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {1} AND c.relkind IN ('r', 'p')"""
_COLUMNS: Final = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
WHERE c.relname = {1} AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = """
_OF_SCHEMA: Final = "(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {2}) ORDER BY a.attnum"
_TEMPORARY: Final = "pg_catalog.pg_my_temp_schema() ORDER BY a.attnum"
_OTHER: Final = """
SELECT c.relkind::text, c.relpersistence::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {1} AND c.relname = {2}
UNION ALL SELECT 'c', 'p' FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname = {3} AND t.typname = {4} AND t.typrelid = 0 AND t.typelem = 0"""
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "S": "a sequence",
    "f": "a foreign table",
    "c": "a type",
    "i": "an index",
    "I": "an index",
}
_PASSING: Final = {
    "u": "an UNLOGGED table, which PostgreSQL empties after a crash (or make it one by ALTER TABLE … SET LOGGED)",
    "t": "a temporary table, which ends with its session",
}
_INDEXES: Final = """
SELECT indexname FROM pg_catalog.pg_indexes WHERE tablename = {1} AND schemaname = {2}"""
_GUARD: Final = "SELECT pg_advisory_xact_lock(hashtextextended('strandline ' || {1}, 0))"
HOLDS: Final = Holds(
    "PostgreSQL",
    dates=Days(-2_440_588, 2_145_042_905, "dates from 4714-11-24 BC to 5874897-12-31"),
    times=Days(-2_440_588, 106_751_991, "times from 4714-11-24 BC on"),
    nul=False,
    key_bytes=2_600,
    inside=Holds("PostgreSQL", nul=False),
)
"""An entry of an index has at most a third of a page; JSON keeps dates as texts."""


class PostgresDialect(Dialect):
    """One schema of a database."""

    system: ClassVar[str] = "PostgreSQL"
    holds: ClassVar[Holds] = HOLDS
    text: ClassVar[Sql] = Sql("text")
    name_text: ClassVar[Sql] = Sql("text")
    lock: ClassVar[LiteralString] = "{q} FOR UPDATE"

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def identifier(self, name: str) -> Sql:
        """See `Dialect.identifier`."""
        if "\0" in name:
            raise DefinitionError(f"the name {shown(name)} has a NUL character, which PostgreSQL cannot store")
        if len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise DefinitionError(
                f"the name {shown(name)} has more than {NAME_BYTES_MAX} bytes; PostgreSQL would cut it"
            )
        return identifier(name)

    def fold(self, name: str) -> str:
        """Return the name: quoted names are compared as they are."""
        return name

    def qualified(self, table: str) -> Sql:
        """See `Dialect.qualified`."""
        return compose("{s}.{t}", s=self.identifier(self._schema), t=self.identifier(table))

    def check_table(self, name: str, columns: Sequence[str]) -> None:
        """See `Dialect.check_table`."""
        if self._schema.startswith("pg_temp"):
            raise DefinitionError(
                f"{name!r} cannot be filled in schema {self._schema!r}: its tables end with a session; choose another"
            )
        for column in columns:
            if column in _OF_THE_SYSTEM:
                raise DefinitionError(f"a column of {name!r} is called {column!r}, which every table of PostgreSQL has")

    def column_type(self, kind: Type, *, key: bool) -> Sql:
        """See `Dialect.column_type`."""
        match kind:
            case Atom(name):
                return _TYPES[name]
            case Decimal(precision, scale):
                return Sql(f"numeric({precision},{scale})")
            case Array() | Struct():
                if key:
                    raise DefinitionError("an array or a struct cannot be part of a key here: it is stored as JSON")
                return Sql("jsonb")

    def tables(self, connection: Connection) -> list[str]:
        """See `Dialect.tables`."""
        return [str(name) for (name,) in connection.query(self.statement(_TABLES), self._schema)]

    def columns(self, connection: Connection, table: str, *, temporary: bool = False) -> list[Found]:
        """See `Dialect.columns`."""
        if temporary:
            rows = connection.query(self.statement(_COLUMNS + _TEMPORARY), table)
        else:
            rows = connection.query(self.statement(_COLUMNS + _OF_SCHEMA), table, self._schema)
        return [Found(str(name), str(kind), bool(required)) for name, kind, required in rows]

    def other(self, connection: Connection, name: str) -> str | None:
        """See `Dialect.other`."""
        found = connection.query(self.statement(_OTHER), self._schema, name, self._schema, name)
        whats = (_KINDS.get(str(kind), _PASSING.get(str(lasts))) for kind, lasts in found)
        return next((what for what in whats if what is not None), None)

    def indexes(self, connection: Connection, table: str) -> list[str]:
        """See `Dialect.indexes`."""
        return [str(name) for (name,) in connection.query(self.statement(_INDEXES), table, self._schema)]

    def guard(self, connection: Connection, checkpoints: Sql, materialization: str) -> None:
        """See `Dialect.guard`."""
        connection.query(self.statement(_GUARD), materialization)

    def index(self, name: Sql, table: Sql, key: Sequence[tuple[Sql, Type]]) -> Sql | None:
        """See `Dialect.index`."""
        columns = joined(", ", (column for column, _ in key))
        return compose("CREATE UNIQUE INDEX {i} ON {t} ({k}) NULLS NOT DISTINCT", i=name, t=table, k=columns)

    def merge(self, pairs: Pairs, columns: Sequence[tuple[Sql, Sql]], deleted: Sql | None) -> Sql | None:
        """See `Dialect.merge`."""
        sets = [compose("{n} = r.{c}", n=there, c=placed) for there, placed in columns]
        inserted = [(there, compose("r.{c}", c=placed)) for there, placed in columns]
        holes = {"s": joined(", ", sets)}
        if deleted is None:
            whens = compose(
                "WHEN MATCHED AND r.present AND r.gone THEN DELETE WHEN MATCHED AND r.present THEN UPDATE SET {s}",
                **holes,
            )
        else:
            inserted.append((deleted, Sql("FALSE")))
            whens = compose(
                "WHEN MATCHED AND r.present AND r.gone AND NOT t.{d} THEN UPDATE SET {d} = TRUE "
                "WHEN MATCHED AND r.present AND NOT t.{d} THEN UPDATE SET {s} "
                "WHEN MATCHED AND NOT r.present AND t.{d} THEN UPDATE SET {s}, {d} = FALSE",
                d=deleted,
                **holes,
            )
        return compose(
            "MERGE INTO {t} AS t USING (SELECT * FROM {r} AS r WHERE {a}) AS r ON {m} {w} "
            "WHEN NOT MATCHED AND NOT r.present THEN INSERT ({c}) VALUES ({v})",
            t=pairs.table,
            r=pairs.staged,
            a=pairs.among,
            m=pairs.match,
            w=whens,
            c=joined(", ", (there for there, _ in inserted)),
            v=joined(", ", (value for _, value in inserted)),
        )


@dataclass(frozen=True, kw_only=True)
class PostgresTarget(TableOptions, PostgresConnection):
    """Where the database is, and how tables are kept."""

    schema: str = option(TEXT, "The schema of the tables; it must be there.", default="public")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in the schema; only Strandline writes it.")


def _open(options: PostgresTarget, clock: Clock) -> SqlDriver:
    from strandline.materialize.drivers.postgres.database import PostgresDatabase

    dialect = PostgresDialect(options.schema)
    return SqlDriver(KIND.spec, dialect, lambda: PostgresDatabase(clock, options), soft=options.soft)


KIND: Final = DriverKind(
    "postgres", PostgresTarget, PostgresResource, "docs/endpoints/postgres.md", _open, lambda _: (extras.POSTGRES,)
)
