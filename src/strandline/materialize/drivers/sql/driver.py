"""The driver of databases that are authoritative: rows and their checkpoint are committed in one transaction there.

The session spools rows from Store to StartCommit (in memory up to a limit, else in a temporary file), so that the
database has a transaction open only for the commit.  The session reports that the commit has begun, commits, and then
reports that the rows can be read.  If the outcome of COMMIT is not known, the session reads the checkpoint row: only
this session has its fence, so the row shows the outcome.

A binding that is not in the committed checkpoint begins with an empty table.  The transaction that stores its first
rows also empties its table, so readers see the old contents until they see the new ones.  A table that this task has
never filled, or has given up, must be empty at that time: other programs may have written to it since it was adopted.

Laws: M2, M3.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import pyarrow as pa

from strandline.algebra.schema import Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError
from strandline.materialize.driver import (
    Answers,
    Applied,
    Constraint,
    ConstraintKind,
    Contents,
    DriverSpec,
    Session,
    Validated,
    no_name,
)
from strandline.materialize.drivers.sql import checkpoints, evolution, tables
from strandline.materialize.drivers.sql.checkpoints import Claim
from strandline.materialize.drivers.sql.connection import Connection, Database
from strandline.materialize.drivers.sql.dialect import Dialect
from strandline.materialize.drivers.sql.evolution import Change
from strandline.materialize.drivers.sql.tables import Pending, Target, check_names
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Loaded,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, Binding, Checkpoint, KeyRange, MaterializationSpec
from strandline.materialize.spool import Spool
from strandline.options import one_of, option


class SqlSession:
    """See `Session`: it spools rows, and uses the database only at Open, Load and StartCommit."""

    def __init__(self, database: Database, dialect: Dialect, *, soft: bool = False) -> None:
        self._database = database
        self._dialect = dialect
        self._soft = soft
        self._said = Conversation()
        self._answers = Answers()
        self._targets: tuple[Target, ...] = ()
        self._held: Claim | None = None
        self._committed = NOTHING
        self._stores: dict[int, Pending] = {}

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, range=range_):
                self._targets = tuple(Target(self._dialect, binding, self._soft) for binding in spec.bindings)
                self._held, self._committed = await self._claim(spec, range_)
                self._answer(Opened(self._committed, refuses=True))
                self._answer(Acknowledged())  # this driver never leaves rows staged
            case Acknowledge():
                pass
            case Load():
                await self._load(message)
            case Flush():
                self._answer(Flushed())
            case Store(binding, rows):
                if binding not in self._stores:
                    self._stores[binding] = Pending(self._targets[binding])
                self._stores[binding].add(rows)
            case StartCommit(checkpoint):
                self._answer(StartedCommit())
                await self._commit(checkpoint)
                self._answer(Acknowledged())

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Drop uncommitted rows."""
        for pending in self._stores.values():
            pending.close()
        self._stores.clear()
        await self._database.close()

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    async def _claim(self, spec: MaterializationSpec, wanted: KeyRange) -> tuple[Claim, Checkpoint]:
        def work(connection: Connection) -> tuple[Claim, Checkpoint]:
            checkpoints.create(connection, self._dialect)
            connection.begin()
            try:
                claimed = checkpoints.claim(connection, self._dialect, spec.name, wanted, spec.state_keys)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            return claimed

        return await self._database.run(work, again=True)

    async def _load(self, message: Load) -> None:
        def work(connection: Connection) -> list[pa.Table]:
            found: list[pa.Table] = []
            connection.begin()
            try:
                tables.load(connection, self._targets[message.binding], message.keys, found.append)
            finally:
                connection.rollback()
            return found

        for rows in await self._database.run(work):
            self._answer(Loaded(message.binding, rows))

    async def _commit(self, checkpoint: Checkpoint) -> None:
        held = self._held
        assert held is not None, "the grammar lets nothing be committed before Open"
        stores, self._stores = self._stores, {}
        attempts = 0

        def work(connection: Connection) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1 or not self._landed(connection, held, checkpoint):
                self._transact(connection, held, stores, checkpoint)

        with ExitStack() as closing:
            for pending in stores.values():
                closing.callback(pending.close)
            await self._database.run(work, again=True)  # splits of one task may wait for each other in a circle
        self._held, self._committed = held.raised, checkpoint

    def _landed(self, connection: Connection, held: Claim, checkpoint: Checkpoint) -> bool:
        connection.begin()
        try:
            return checkpoints.landed(connection, self._dialect, held, checkpoint)
        finally:
            connection.rollback()

    def _transact(
        self, connection: Connection, held: Claim, stores: Mapping[int, Pending], checkpoint: Checkpoint
    ) -> None:
        """Run the whole transaction, in a worker thread."""
        connection.begin()
        try:
            self._write(connection, held, stores, checkpoint)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _write(
        self, connection: Connection, held: Claim, stores: Mapping[int, Pending], checkpoint: Checkpoint
    ) -> None:
        # First the claim: no other session can change what is read after it.
        checkpoints.advance(connection, self._dialect, held, checkpoint)
        splits = checkpoints.of_task(connection, self._dialect, held.materialization)
        before = [self._committed, *(each for key_range, each in splits.items() if key_range != held.range)]
        for target in self._targets:
            if all(each.of(target.binding.state_key) is None for each in before):
                if any(each.mentions(target.binding) for each in before):
                    tables.empty(connection, target, held.range)
                elif not target.binding.gives_up:
                    tables.refuse_rows(connection, target)
        for binding, pending in stores.items():
            tables.store(connection, self._targets[binding], pending)


class Delete(Enum):
    """What becomes of a row that went."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How rows are kept in tables."""

    delete: Delete = option(
        one_of(Delete),
        "What becomes of a row that went: it is deleted (`hard`), or kept as it was, with `__deleted` true (`soft`).",
        default="hard",
    )

    @property
    def soft(self) -> bool:
        """Whether deleted rows are kept."""
        return self.delete is Delete.SOFT


T = TypeVar("T")


class SqlDriver:
    """See `Driver`.  ``database`` opens one more handle to the database, which touches it only when it runs something.

    ``soft``: deleted rows are marked.
    """

    def __init__(
        self, spec: DriverSpec, dialect: Dialect, database: Callable[[], Database], *, soft: bool = False
    ) -> None:
        self._spec = spec
        self._dialect = dialect
        self._database = database
        self._soft = soft

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return self._spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding's columns; does not touch the database."""
        for binding in spec.bindings:
            check_names(self._dialect, binding)
        holds = self._dialect.holds
        return tuple(Validated({c.name: self._verdict(b, c) for c in b.schema}, holds) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Create the tables that are missing, change or recreate those that no longer fit, check the others."""

        def work(connection: Connection) -> list[Change]:
            connection.begin()
            try:
                done = []
                before = evolution.beforehand(connection, self._dialect, spec)
                checkpoints.forget(connection, self._dialect, spec.name, before.forgotten)
                for binding in spec.bindings:
                    changes = evolution.plan(connection, self._target(binding), before)
                    for change in changes:
                        for statement in change.statements:
                            connection.change(statement)
                    done += changes
                if any(change.statements for change in done):  # these lock the tables, so no one can fill them now
                    evolution.require_newest(connection, self._dialect, spec)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            return done

        return Applied("; ".join(change.said for change in await self._run(work) if change.said))

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` would do."""

        def work(connection: Connection) -> list[Change]:
            connection.begin()
            try:
                before = evolution.beforehand(connection, self._dialect, spec)
                targets = map(self._target, spec.bindings)
                return [change for target in targets for change in evolution.plan(connection, target, before)]
            finally:
                connection.rollback()

        return tuple(change.said for change in await self._run(work) if change.said)

    async def open(self) -> Session:
        """Start a conversation; the database is not touched before `Open`."""
        return SqlSession(self._database(), self._dialect, soft=self._soft)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return the rows of the binding's table, which are copied first: a transaction is open no longer than that."""
        copied = Spool()
        target = self._target(binding)

        def work(connection: Connection) -> Checkpoint | None:
            connection.begin(frozen=True)
            try:
                tables.contents(connection, target, copied.add)
                held = [*checkpoints.of_task(connection, self._dialect, task).values()]
            finally:
                connection.rollback()
            return held[0] if len(set(held)) == 1 else None

        return Contents(await self._run(work), _tables(copied))

    async def _run(self, work: Callable[[Connection], T]) -> T:
        database = self._database()
        try:
            return await database.run(work, again=True)
        finally:
            await database.close()

    def _target(self, binding: Binding) -> Target:
        return Target(self._dialect, binding, self._soft)

    def _verdict(self, binding: Binding, column: Column) -> Constraint:
        key = column.name in binding.key
        try:
            self._dialect.identifier(column.name)
        except DefinitionError as error:
            return no_name(str(error))
        try:
            kind = self._dialect.column_type(parse(column.name, column.type), key=key and not binding.delta)
        except DefinitionError as error:
            return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
        if not key:
            return Constraint(ConstraintKind.FIELD_OPTIONAL, f"stored as {kind.text}")
        return Constraint(ConstraintKind.LOCATION_REQUIRED, f"part of the key, stored as {kind.text}")


async def _tables(spool: Spool) -> AsyncGenerator[pa.Table, None]:
    with closing(spool):
        for table in spool.tables():
            yield table
