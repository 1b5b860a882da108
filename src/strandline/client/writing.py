"""Transactions: what a program changes in tables, gathered and committed at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from strandline.algebra.excerpt import within
from strandline.client.access import Access
from strandline.controller.asking import reads
from strandline.controller.holding import Hold
from strandline.controller.language import arguments, literals, statements
from strandline.errors import (
    AsOfError,
    CollectionError,
    DefinitionError,
    Determinate,
    InvalidUsage,
    Position,
    Unavailable,
)
from strandline.instance.commands import Collection
from strandline.instance.tables import Change, Statement
from strandline.persist.handles.contents import Rows
from strandline.plane.edits import Edit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Data: TypeAlias = "DataFrame | pa.Table | Sequence[Mapping[str, Any]]"


class Transaction:
    """Several tables, one timestamp, all or nothing: committed when the block ends without an error.

    It sees the tables as they were before it: neither its reads nor its deletes see its own inserts.  If another writer
    commits meanwhile, the transaction repeats its reads, so the caller handles no conflict.  A row to delete that does
    not exist, or no longer exists, fails the whole transaction.
    """

    def __init__(self, access: Access, token: str | None) -> None:
        self._access = access
        self._token = arguments.token(token)
        self._changes: list[Change | Statement] = []
        self._committed = False
        self._doubtful = False
        self.timestamp: int | None = None
        """The commit's time, once the block has ended; None if it changed nothing."""

    def __repr__(self) -> str:
        count = f"{len(self._changes)} change{'' if len(self._changes) == 1 else 's'}"
        if self._doubtful:
            return f"<Transaction of {count}, outcome unknown>"
        return f"<Transaction of {count}, {f'committed at {self.timestamp}' if self._committed else 'not committed'}>"

    def insert(self, table: str, rows: Data) -> None:
        """Insert ``rows`` into ``table`` when the transaction commits."""
        self._add(change(self._access, table, rows, deletes=False))

    def delete(self, table: str, rows: Data) -> None:
        """Delete ``rows`` from ``table`` when the transaction commits; each must be there, as often as it is given."""
        self._add(change(self._access, table, rows, deletes=True))

    def execute(self, sql: str | statements.Statement) -> None:
        """Do an INSERT, UPDATE or DELETE when the transaction commits.

        Raises `DefinitionError` with a position where the text is wrong, `InvalidUsage` if it is another statement.
        """
        match statement := arguments.statement(sql):
            case statements.Insert():
                self._add(_inserted(self._access, statement) or _inserting(self._access, statement))
            case statements.Delete() | statements.Update():
                self._add(_editing(self._access, statement))
            case other:
                raise InvalidUsage(
                    f"{type(other).__name__} cannot be part of a transaction: it may INSERT, UPDATE, DELETE"
                )

    def commit(self) -> int | None:
        """Commit what was gathered, and return its time (None: it is nothing); durable when it returns.

        After a commit that failed, the caller may call it again.  Without a token that is refused if the outcome is
        not known, since no store could separate the first attempt from the second.
        """
        self._refuse_committed()
        if self._changes:
            try:
                self.timestamp = self._access.run(self._access.core.commit(self._changes, self._token))
            except (Determinate, Unavailable, InvalidUsage, DefinitionError, AsOfError, CollectionError):
                raise  # it has not happened
            except BaseException:
                self._doubtful = self._token is None
                raise
        self._committed = True
        return self.timestamp

    def _add(self, change: Change | Statement) -> None:
        self._refuse_committed()
        self._changes.append(change)

    def _refuse_committed(self) -> None:
        if self._committed:
            raise InvalidUsage("this transaction is committed; begin another one")
        if self._doubtful:
            raise InvalidUsage(
                "the outcome of this transaction is unknown, and it has no token to look it up by; read its tables, "
                "and begin another one (with a token, a transaction can be committed again safely)"
            )


def change(access: Access, name: str, rows: Data, *, deletes: bool) -> Change:
    """Return rows to insert into a table, or to delete from it; a column that is left out of an insert is NULL."""
    table = _table(access, name)
    diff = -1 if deletes else 1
    if arguments.is_spark(rows):
        frame = access.assembly.engine.given(cast("DataFrame", rows), table.schema, diff=diff)
        return Change(table, frame, deletes, None)
    given = arguments.arrow(rows, table.name, table.schema.names)
    return _listed(access, table, given if deletes else _filled(given, table.schema.names), deletes=deletes)


def _filled(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows to insert with a column of NULL for each of ``names`` that they leave out."""
    given = {name.lower() for name in rows.column_names}
    for name in names:
        if name.lower() not in given:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def _listed(access: Access, table: Collection, rows: pa.Table, *, deletes: bool) -> Change:
    frame = access.wait(access.core.engine.local(rows, table.schema, time=0, diff=-1 if deletes else 1))
    return Change(table, frame, deletes, rows.num_rows)


def _inserted(access: Access, s: statements.Insert) -> Change | None:
    """Return the rows of an INSERT that needs no Spark; None: it does."""
    table = _table(access, s.table, s.at)
    columns = {column.name.lower(): column for column in table.schema}
    named = [name.lower() for name, _ in s.columns] or list(columns)
    if len({*named}) < len(named) or not {*named} <= columns.keys():
        return None
    rows = literals.rows(s.query.text, [columns[name] for name in named])
    if rows is None:
        return None
    return _listed(access, table, _filled(rows, table.schema.names).select(table.schema.names), deletes=False)


def _inserting(access: Access, s: statements.Insert) -> Statement:
    table = _table(access, s.table, s.at)
    for name, at in s.columns:
        _require_column(table, name, at)
    columns = tuple(name for name, _ in s.columns) or table.schema.names
    engine = access.assembly.engine
    with within(s.query.start):
        names = reads.relations_of(access.core, s.query.text)

    async def read(as_of: int) -> Rows:
        hold = Hold()
        with within(s.query.start):
            found = await reads.query(access.core, s.query.text, as_of, hold)
            return engine.inserted(access.hand_out(found.rows, hold), columns, table.schema)

    return Statement(table, read, reads.collections_of(access.core, names), deletes=False)


def _editing(access: Access, s: statements.Delete | statements.Update) -> Statement:
    table = _table(access, s.table, s.at)
    values = {}
    for each in () if isinstance(s, statements.Delete) else s.assignments:
        _require_column(table, each.column, each.at)
        values[each.column.lower()] = each.value
    edit = Edit(s.alias, s.where, values)
    engine = access.assembly.engine
    names = reads.edit_reads(access.core, table.name, edit)

    async def read(as_of: int) -> Rows:
        hold = Hold()
        _, relations = await reads.relations_at(access.core, names, as_of, hold)
        rows = await engine.edited(table.name.lower(), edit, relations)
        return engine.from_dataframe(access.hand_out(rows, hold))

    return Statement(table, read, reads.collections_of(access.core, names), deletes=True)


def _table(access: Access, name: str, at: Position | None = None) -> Collection:
    """Return the table called ``name``, which stands at ``at`` of a statement."""
    access.refuse_closed()
    with within(at):
        return access.core.table(arguments.text(name, "the table's name"))


def _require_column(table: Collection, name: str, at: Position) -> None:
    if name.lower() not in {known.lower() for known in table.schema.names}:
        known = ", ".join(table.schema.names)
        raise DefinitionError(f"table {table.name!r} has no column {name!r}; it has {known}", at)
