"""Transactions: what a program changes in tables, gathered and committed at one time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from strandline.algebra.arrow_types import arrow_fits, arrow_schema
from strandline.algebra.notation import within
from strandline.algebra.schema import DIFF
from strandline.algebra.types import parse
from strandline.client.access import Access
from strandline.client.cancelling import present
from strandline.compute.plan.sql import question_marks
from strandline.controller.asking import reads
from strandline.controller.holding import Hold
from strandline.controller.introspection.listed import schema_of
from strandline.controller.language import arguments, literals, statements
from strandline.controller.language.showing import Show
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
from strandline.plane import Described, Edit

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
        self._updates: list[list[DataFrame]] = []
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
                found: list[DataFrame] = []
                self._add(_editing(self._access, statement, found))
                if isinstance(statement, statements.Update):
                    self._updates.append(found)
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
                self.timestamp = committed(self._access, self._changes, self._token)
            except (Determinate, Unavailable, InvalidUsage, DefinitionError, AsOfError, CollectionError):
                raise  # it has not happened
            except BaseException:
                self._doubtful = self._token is None
                raise
        self._committed = True
        return self.timestamp

    def updated(self) -> int | None:
        """Return how many rows the UPDATEs of a committed transaction have set, those included that are as before.

        The commit cannot tell: a row that is set to what it was is no change, nor are two rows that swap their values.
        So what the UPDATEs found is counted again, in a job of Spark for each.

        None: Spark could not count them.  That is no failure of the transaction, which is durable: a client that heard
        of one would send it again.
        """
        try:
            return sum(rows.where(f"{DIFF} > 0").count() for found in self._updates for rows in found)
        except Exception:  # noqa: BLE001 - whatever it is, see above
            return None

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


def committed(access: Access, changes: Sequence[Change | Statement], token: str | None) -> int:
    """Commit changes at one time and return it; raises as `Core.commit`.

    Where a job has to compute their rows, no other call waits while there is no executor; see `Access.computed`.  It is
    listed as a query then, and cancelled as one before the commit.
    """
    jobs = any(isinstance(each, Statement) or each.rows is None for each in changes)
    if not jobs:
        return access.computed(partial(access.core.commit, changes, token), jobs=False)
    ending, names = present(), ", ".join(sorted({each.table.name for each in changes}))
    with access.core.queries.asked(f"change of {names}", ending) as query:

        async def commit() -> int:
            ending.by(query.stop)  # a commit that has begun is not taken back
            return await access.core.commit(changes, token)

        try:
            return access.computed(commit)
        except KeyboardInterrupt:
            query.stop()
            raise


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
    _require_assignable(table, rows)
    frame = access.wait(access.core.engine.local(rows, table.schema, time=0, diff=-1 if deletes else 1))
    return Change(table, frame, deletes, rows.num_rows)


def _require_assignable(table: Collection, rows: pa.Table) -> None:
    """Refuse rows with a column of another kind than the table's, as Spark refuses a DataFrame's.

    Arrow would read a number from a text, and take a whole number for the days of a date.
    """
    given = {field.name.lower(): field.type for field in rows.schema}
    for column in table.schema:
        kind = given.get(column.name.lower())
        if kind is not None and not arrow_fits(kind, parse(column.name, column.type)):
            raise InvalidUsage(
                f"table {table.name!r}: column {column.name!r} is {column.type}, and the rows have {kind} in it: "
                "convert them first (nothing else makes a number or a date of a text)"
            )


def _inserted(access: Access, s: statements.Insert) -> Change | None:
    """Return the rows of an INSERT that needs no Spark; None: it does."""
    table = _table(access, s.table, s.at)
    columns = {column.name.lower(): column for column in table.schema}
    named = [name.lower() for name, _ in s.columns] or list(columns)
    if len({*named}) < len(named) or not {*named} <= columns.keys():
        return None
    rows = literals.rows(s.query, [columns[name] for name in named])
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
            found = await reads.query(access.core, s.query.text, as_of, hold, s.query.given)
            return engine.inserted(access.hand_out(found.rows, hold), columns, table.schema)

    return Statement(table, read, reads.collections_of(access.core, names), deletes=False)


def _editing(access: Access, s: statements.Delete | statements.Update, found: list[DataFrame]) -> Statement:
    """Return what a statement does; ``found`` gets its updates as they were read last: at the commit."""
    table = _table(access, s.table, s.at)
    for each in () if isinstance(s, statements.Delete) else s.assignments:
        _require_column(table, each.column, each.at)
    edit = _edit(s)
    engine = access.assembly.engine
    names = reads.edit_reads(access.core, table.name, edit)

    async def read(as_of: int) -> Rows:
        hold = Hold()
        _, relations = await reads.relations_at(access.core, names, as_of, hold)
        rows = await engine.edited(table.name.lower(), edit, relations)
        found[:] = [access.hand_out(rows, hold)]
        return engine.from_dataframe(found[0])

    return Statement(table, read, reads.collections_of(access.core, names), deletes=True)


Prepared: TypeAlias = tuple[pa.Schema | None, list[pa.DataType]]
"""The columns that a statement is answered with (None: it changes something), and the types of its parameters."""


def prepared(access: Access, statement: statements.Statement, reading: asyncio.Lock) -> Prepared:
    """Return what a statement is answered with, and the types of its parameters; see `Environment.prepared`.

    ``reading``: held while it is found out what is read.
    """
    match statement:
        case Show():
            return arrow_schema(schema_of(statement)), []
        case statements.Query(text):
            found = access.wait(_described(access, text, reading))
            return found.columns, list(found.parameters)
        case statements.Insert():
            return None, _inserted_types(access, statement, reading)
        case statements.Update() | statements.Delete():
            return None, _edited_types(access, statement, reading)
    return None, []


async def _described(access: Access, sql: str, reading: asyncio.Lock) -> Described:
    hold = Hold()
    try:
        await access.core.look()
        async with reading:
            return await reads.described(access.core, sql, hold)
    finally:
        hold.give_back()


def _inserted_types(access: Access, s: statements.Insert, reading: asyncio.Lock) -> list[pa.DataType]:
    """Return the type of each parameter of an INSERT: what goes into a column has the column's."""
    kinds = _kinds(_table(access, s.table, s.at))
    into = [kinds.get(name.lower(), pa.string()) for name, _ in s.columns] or list(kinds.values())
    found = literals.parameter_types(s.query.text, into)
    if found is not None:
        return found
    with within(s.query.start):
        described = access.wait(_described(access, s.query.text, reading))
    places = described.outputs
    return [
        into[places[number]] if places.get(number, len(into)) < len(into) else kind
        for number, kind in enumerate(described.parameters)
    ]


def _edited_types(access: Access, s: statements.Update | statements.Delete, reading: asyncio.Lock) -> list[pa.DataType]:
    """Return the type of each parameter of an UPDATE or a DELETE; what a column is set to has the column's."""
    table, edit = _table(access, s.table, s.at), _edit(s)
    kinds = _kinds(table)
    assigned = [] if isinstance(s, statements.Delete) else list(s.assignments)
    counts = {each: len(question_marks(each.text)) for each in edit.excerpts}
    names = reads.edit_reads(access.core, table.name, edit)

    async def read() -> list[pa.DataType]:
        hold = Hold()
        try:
            async with reading:
                _, relations = await reads.relations_at(access.core, names, None, hold)
                return await access.assembly.engine.edit_kinds(table.name.lower(), edit, relations, counts)
        finally:
            hold.give_back()

    found, into = access.wait(read()), list[pa.DataType]()
    for each in assigned:
        of_value, found = found[: counts[each.value]], found[counts[each.value] :]
        alone = each.value.text.strip() == "?"
        into += [kinds.get(each.column.lower(), pa.string())] if alone else of_value
    return into + found


def _kinds(table: Collection) -> dict[str, pa.DataType]:
    return {field.name.lower(): field.type for field in arrow_schema(table.schema)}


def _edit(s: statements.Delete | statements.Update) -> Edit:
    assigned = () if isinstance(s, statements.Delete) else s.assignments
    return Edit(s.alias, s.where, {each.column.lower(): each.value for each in assigned})


def _table(access: Access, name: str, at: Position | None = None) -> Collection:
    """Return the table called ``name``, which stands at ``at`` of a statement."""
    access.refuse_closed()
    with within(at):
        return access.core.table(arguments.text(name, "the table's name"))


def _require_column(table: Collection, name: str, at: Position) -> None:
    if name.lower() not in {known.lower() for known in table.schema.names}:
        known = ", ".join(table.schema.names)
        raise DefinitionError(f"table {table.name!r} has no column {name!r}; it has {known}", at)
