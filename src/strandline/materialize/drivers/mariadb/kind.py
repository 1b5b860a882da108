"""The endpoint `mariadb`: its options, how it is opened, and its dialect (with ``ANSI_QUOTES`` on).

    CREATE MATERIALIZATION m INTO MARIADB OPTIONS (host 'db', database 'shop', user 'strandline',
        password 'env:MARIADB_PASSWORD') AS v KEY (id)

MariaDB commits an open transaction when it makes or changes a table, so such statements are never part of a transaction
with rows.

Source: MariaDB's documentation, "Identifier Names", "Data Types", "Mapping of Table Names to File Names".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, LiteralString

from strandline import extras
from strandline.algebra.schema import shown
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.connections.mariadb import MariaDBConnection
from strandline.errors import DefinitionError
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier, joined
from strandline.materialize.drivers.sql.dialect import Dialect, Found, Pairs
from strandline.materialize.drivers.sql.driver import SqlDriver, TableOptions
from strandline.materialize.protocol.holds import Days, Holds
from strandline.options import TEXT, option
from strandline.store.clock import Clock

NAME_CHARACTERS_MAX: Final = 64
FILE_BYTES_MAX: Final = 240
"""A table's name is a file's, in which most characters that are no letter of ASCII take five bytes."""
INDEXED_CHARACTERS_MAX: Final = 191
INDEX_CHARACTERS_MAX: Final = 3072 // 4
_BMP_MAX: Final = "\uffff"
_DOTTED_I: Final = "\u0130"
"""The only capital that is another small letter to MariaDB, `i`, than to all of us."""
_EXACT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
"""Texts are equal if their characters are, and a space at the end counts."""
_TEXT: Final = Sql(f"LONGTEXT {_EXACT}")
_TYPES: Final = {
    "boolean": Sql("BOOLEAN"),
    "tinyint": Sql("TINYINT"),
    "smallint": Sql("SMALLINT"),
    "int": Sql("INT"),
    "bigint": Sql("BIGINT"),
    **dict.fromkeys(("float", "double"), Sql("DOUBLE")),  # a FLOAT is read back with six digits
    "string": _TEXT,
    "binary": Sql("LONGBLOB"),
    "date": Sql("DATE"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), Sql("DATETIME(6)")),
}
_LONG: Final = (Atom("string"), Atom("binary"))
_TABLES: Final = Sql("""
SELECT table_name FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine = 'InnoDB'""")
"""Those that can be filled; `MariaDBDialect.other` says what else there is."""
_OTHER: LiteralString = """
SELECT table_name, table_type, engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = {1}"""
_INDEXES: LiteralString = """
SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = {1}"""


HOLDS: Final = Holds(
    "MariaDB",
    dates=Days(-719_162, 2_932_896, "dates and times of the years 1 to 9999"),
    finite=True,
    inside=Holds("MariaDB"),
)
"""JSON keeps dates, and numbers that are none, as texts."""


class MariaDBDialect(Dialect):
    """The database of the connection."""

    system: ClassVar[str] = "MariaDB"
    holds: ClassVar[Holds] = HOLDS
    text: ClassVar[Sql] = _TEXT
    name_text: ClassVar[Sql] = Sql(f"VARCHAR(255) {_EXACT}")
    same: ClassVar[LiteralString | None] = "{a} <=> {b}"
    lock: ClassVar[LiteralString] = "{q} FOR UPDATE"
    widen: ClassVar[LiteralString | None] = "ALTER TABLE {t} MODIFY COLUMN {n} {c}"
    relax: ClassVar[LiteralString | None] = "ALTER TABLE {t} MODIFY COLUMN {n} {c} NULL"
    unindex: ClassVar[LiteralString] = "DROP INDEX {i} ON {t}"

    def identifier(self, name: str) -> Sql:
        """See `Dialect.identifier`."""
        if "\0" in name or max(name, default="") > _BMP_MAX or name[-1:].isspace():
            raise DefinitionError(
                f"the name {shown(name)} has a NUL, a character beyond U+FFFF, or white space at its end, "
                "which MariaDB has in no name"
            )
        if len(name) > NAME_CHARACTERS_MAX:
            raise DefinitionError(f"the name {shown(name)} has more than {NAME_CHARACTERS_MAX} characters")
        return identifier(name)

    def fold(self, name: str) -> str:
        """Return the name: tables are compared as the server's files are."""
        return name

    def check_table(self, name: str, columns: Sequence[str]) -> None:
        """See `Dialect.check_table`."""
        if sum(1 if char.isascii() and (char.isalnum() or char == "_") else 5 for char in name) > FILE_BYTES_MAX:
            raise DefinitionError(f"the name {shown(name)} is too long for the file that MariaDB keeps a table in")
        by_case: dict[str, str] = {}
        for column in columns:
            other = by_case.setdefault(column.replace(_DOTTED_I, "i").lower(), column)
            if other is not column:
                raise DefinitionError(
                    f"the columns {shown(other)} and {shown(column)} of {name!r} are one name to MariaDB; give one of "
                    "them another in a view (`… AS name`), and materialize that"
                )

    def column_type(self, kind: Type, *, key: bool) -> Sql:
        """See `Dialect.column_type`."""
        match kind:
            case Atom(name):
                return _TYPES[name]
            case Decimal(precision, scale):
                return Sql(f"DECIMAL({precision},{scale})")
            case Array() | Struct():
                if key:
                    raise DefinitionError("an array or a struct cannot be part of a key here: it is stored as JSON")
                return Sql("JSON")

    def tables(self, connection: Connection) -> list[str]:
        """See `Dialect.tables`."""
        return [str(name) for (name,) in connection.query(_TABLES)]

    def columns(self, connection: Connection, table: str, *, temporary: bool = False) -> list[Found]:
        """See `Dialect.columns`."""
        rows: list[Any] = connection.query(compose("SHOW FULL COLUMNS FROM {t}", t=identifier(table)))
        return [
            Found(
                name,
                kind if collation is None else f"{kind} {collation}",
                null == "NO" and default is None and "auto_increment" not in extra,
            )
            for name, kind, collation, null, _, default, extra, *_ in rows
        ]

    def other(self, connection: Connection, name: str) -> str | None:
        """See `Dialect.other`."""
        rows: list[Any] = connection.query(self.statement(_OTHER), name)
        for there, kind, engine in rows:  # they are compared without case
            if there == name and kind != "BASE TABLE":
                return f"a {kind.lower().replace('system versioned', 'system-versioned table')}"
            if there == name and engine != "InnoDB":
                return f"a table of the engine {engine}, whose changes are no part of a transaction as InnoDB's are"
        return None

    def indexes(self, connection: Connection, table: str) -> list[str]:
        """See `Dialect.indexes`."""
        return [str(name) for (name,) in connection.query(self.statement(_INDEXES), table)]

    def guard(self, connection: Connection, checkpoints: Sql, materialization: str) -> None:
        """See `Dialect.guard`: the gap in which new ranges would be is locked, too."""
        rows = self.statement("SELECT fence FROM {t} WHERE materialization = {1} FOR UPDATE", t=checkpoints)
        connection.query(rows, materialization)

    def placeholder(self, number: int) -> Sql:
        """See `Dialect.placeholder`."""
        return Sql("%s")

    def index(self, name: Sql, table: Sql, key: Sequence[tuple[Sql, Type]]) -> Sql | None:
        """See `Dialect.index`: of a text only the beginning is indexed, so then rows are found by it, and no more."""
        long = sum(kind in _LONG for _, kind in key)
        length = Sql(f"({min(INDEXED_CHARACTERS_MAX, INDEX_CHARACTERS_MAX // max(1, long) - len(key))})")
        columns = joined(", ", (Sql(n.text + length.text) if kind in _LONG else n for n, kind in key))
        return compose(
            "CREATE INDEX {i} ON {t} ({k})" if long else "CREATE UNIQUE INDEX {i} ON {t} ({k})",
            i=name,
            t=table,
            k=columns,
        )

    def delete(self, pairs: Pairs, condition: Sql) -> Sql:
        """See `Dialect.delete`."""
        return compose(
            "DELETE t FROM {t} AS t JOIN {r} AS r ON {m} WHERE {f}",
            t=pairs.table,
            r=pairs.staged,
            m=pairs.match,
            f=condition,
        )

    def update(self, pairs: Pairs, column: Sql, value: Sql, condition: Sql) -> Sql:
        """See `Dialect.update`."""
        return compose(
            "UPDATE {t} AS t JOIN {r} AS r ON {m} SET t.{n} = {v} WHERE {f}",
            t=pairs.table,
            r=pairs.staged,
            m=pairs.match,
            n=column,
            v=value,
            f=condition,
        )


@dataclass(frozen=True, kw_only=True)
class MariaDBTarget(TableOptions, MariaDBConnection):
    """Where the database is, and how tables are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDBResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in the database; only Strandline writes it.")


def _open(options: MariaDBTarget, clock: Clock) -> SqlDriver:
    from strandline.materialize.drivers.mariadb.database import MariaDBDatabase

    return SqlDriver(KIND.spec, MariaDBDialect(), lambda: MariaDBDatabase(clock, options), soft=options.soft)


KIND: Final = DriverKind(
    "mariadb", MariaDBTarget, MariaDBResource, "docs/endpoints/mariadb.md", _open, lambda _: (extras.MARIADB,)
)
