"""Driver: the unary calls of a database that is authoritative."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from typing import Any, TypeVar

import pyarrow as pa

from strandline.algebra.schema import Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError
from strandline.materialize.driver import (
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
from strandline.materialize.drivers.sql.connection import Connection, Database
from strandline.materialize.drivers.sql.dialect import Dialect
from strandline.materialize.drivers.sql.evolution import Change
from strandline.materialize.drivers.sql.session import SqlSession
from strandline.materialize.drivers.sql.target import Target, check_names
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec
from strandline.materialize.spool import Spool

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
