"""Dialect: how one system says in SQL what all of them can do.

What is said here is what most systems understand; a system's own dialect overrides the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, LiteralString

from strandline.algebra.types import Type
from strandline.materialize.drivers.sql.connection import Connection, Sql, compose, identifier
from strandline.materialize.protocol.holds import EVERYTHING, Holds


@dataclass(frozen=True, slots=True)
class Found:
    """A column of a table; its type is in the system's own spelling.

    ``required``: it takes no NULL, and has no value of its own for a row that does not give one.
    """

    name: str
    type: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """The rows ``t`` of a table and the staged rows ``r`` that have one key, by ``match``.

    ``among``: which staged rows are meant, whether or not there is a row with their key.
    ``columns``: those of the table, by name.
    """

    table: Sql
    staged: Sql
    match: Sql
    among: Sql
    columns: Sequence[str]


class Dialect(ABC):
    """One system, and in it the schema or database whose tables are filled."""

    system: ClassVar[str]
    """Its name in messages."""
    holds: ClassVar[Holds] = EVERYTHING
    """The values that it can store."""
    text: ClassVar[Sql] = Sql("VARCHAR")
    """The type of a text that may be long."""
    name_text: ClassVar[Sql] = Sql("VARCHAR")
    """The type of the name of a materialization."""
    same: ClassVar[LiteralString | None] = None
    """Tells by an index or a hash whether ``{a}`` equals ``{b}``, NULL equal to NULL; None: nothing does."""
    lock: ClassVar[LiteralString] = "{q}"
    """Has the query ``{q}`` wait for the transactions that change its rows."""
    widen: ClassVar[LiteralString | None] = "ALTER TABLE {t} ALTER COLUMN {n} SET DATA TYPE {c}"
    relax: ClassVar[LiteralString | None] = "ALTER TABLE {t} ALTER COLUMN {n} DROP NOT NULL"
    unindex: ClassVar[LiteralString] = "DROP INDEX {i}"

    # --- names, types and values --------------------------------------------------------------------------------------
    def identifier(self, name: str) -> Sql:
        """Return a name, quoted.  Raises `DefinitionError` if the system cannot have it."""
        return identifier(name)

    def check_table(self, name: str, columns: Sequence[str]) -> None:  # noqa: B027 - most can have all
        """Raise `DefinitionError` if a table cannot have this name, or these columns beside each other."""

    def fold(self, name: str) -> str:
        r"""Return a name of a table as the system compares it; here: ASCII letters in lower case."""
        return "".join(char.lower() if char.isascii() else char for char in name)

    def qualified(self, table: str) -> Sql:
        """Return a name of a table that means no temporary one."""
        return self.identifier(table)

    @abstractmethod
    def column_type(self, kind: Type, *, key: bool) -> Sql:
        """Return the type of a column; ``key``: it is part of a key.

        Raises:
            DefinitionError: no column can store it, or no key can have it.
        """

    # --- the catalog --------------------------------------------------------------------------------------------------
    @abstractmethod
    def tables(self, connection: Connection) -> list[str]:
        """Return the names of the tables."""

    @abstractmethod
    def columns(self, connection: Connection, table: str, *, temporary: bool = False) -> list[Found]:
        """Return the columns of a table, in its order."""

    @abstractmethod
    def other(self, connection: Connection, name: str) -> str | None:
        """Return what has the name of a table and cannot be filled, as "a view"; None: nothing, or a table that can."""

    def indexes(self, connection: Connection, table: str) -> list[str]:
        """Return the names of a table's indexes, if this dialect makes any."""
        return []

    def guard(self, connection: Connection, checkpoints: Sql, materialization: str) -> None:  # noqa: B027 - see below
        """Have one transaction at a time go on from here that opens a session of ``materialization``.

        Nothing needs to be done if those that write are one at a time anyway.
        """

    # --- statements ---------------------------------------------------------------------------------------------------
    def placeholder(self, number: int) -> Sql:
        """Return what stands for the parameter of a number, from 1."""
        return Sql(f"${number}")

    def statement(self, template: LiteralString, **holes: Sql) -> Sql:
        """Return a template whose holes ``{1}``, ``{2}`` are parameters, each once and in order."""
        return compose(template, **holes, **{str(number): self.placeholder(number) for number in range(1, 10)})

    def index(self, name: Sql, table: Sql, key: Sequence[tuple[Sql, Type]]) -> Sql | None:
        """Return the statement that indexes the key, and has the system refuse a second row of a key if it can.

        None: no index is of use here.
        """
        return None

    def delete(self, pairs: Pairs, condition: Sql) -> Sql:
        """Return the statement that deletes the rows of those pairs for which ``condition`` holds."""
        return compose(
            "DELETE FROM {t} AS t USING {r} AS r WHERE {m} AND {f}",
            t=pairs.table,
            r=pairs.staged,
            m=pairs.match,
            f=condition,
        )

    def update(self, pairs: Pairs, column: Sql, value: Sql, condition: Sql) -> Sql:
        """Return the statement that sets a column in them."""
        return compose(
            "UPDATE {t} AS t SET {n} = {v} FROM {r} AS r WHERE {m} AND {f}",
            t=pairs.table,
            r=pairs.staged,
            m=pairs.match,
            n=column,
            v=value,
            f=condition,
        )

    def merge(self, pairs: Pairs, columns: Sequence[tuple[Sql, Sql]], deleted: Sql | None) -> Sql | None:
        """Return one statement that does all that a staged row asks for; None: there is none.

        It changes one row for each staged row whose flags are right, and nothing for one whose flags are wrong.

        Args:
            pairs: the rows of the table and the staged rows.
            columns: those of the table, and as which they are staged.
            deleted: the column that says that a row was deleted, if such rows are kept.
        """
        return None
