"""DuckDB: the endpoint is authoritative (pattern 1), its rows and its checkpoint are committed in one transaction.

The table `strandline_checkpoints` has a row per materialization and key range: the fence of the session that opened it
last, and the committed checkpoint (an object of times by state key; everything before these times is in the tables).

*Open*, in one transaction: raise the fence of every range that overlaps ours, take the checkpoint of the narrowest
range that covers it, add our exact range if it is not there.  *Commit*, in one transaction: ``UPDATE ... SET checkpoint
WHERE fence = mine`` must change exactly one row, else another session has fenced this one and nothing is committed;
then the rows are stored.  If the outcome of COMMIT is not known, the session reads the checkpoint row: only this
session has its fence, so the row shows the outcome.

A binding that is not in the committed checkpoint begins from nothing, so the transaction that stores its first rows
also empties its table: readers see the old contents until they see the new ones.

The session spools rows from Store to StartCommit (in memory up to a limit, else in a temporary file), so that it locks
the database file only for the commit.

Laws: M2, M3.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from strandline.algebra.schema import Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError, Unavailable
from strandline.materialize.answers import Answers
from strandline.materialize.driver import (
    Applied,
    Constraint,
    ConstraintKind,
    Contents,
    DriverKind,
    DriverSpec,
    Session,
    Validated,
)
from strandline.materialize.drivers import duckdb_checkpoints, duckdb_tables
from strandline.materialize.drivers.duckdb_checkpoints import Claim
from strandline.materialize.drivers.duckdb_file import DuckDBFile, sentence
from strandline.materialize.drivers.duckdb_tables import Target
from strandline.materialize.drivers.duckdb_types import duckdb_type
from strandline.materialize.protocol.grammar import Conversation
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
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
from strandline.materialize.protocol.task import Binding, Checkpoint, KeyRange, MaterializationSpec
from strandline.materialize.spool import Spool
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBOptions:
    """Where the database is."""

    path: str = option(PLACE, "The DuckDB file; created if missing. Or a reference: `env:NAME`, `file:PATH`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in schema `main`; only Strandline writes it.")


class _OutcomeUnknownError(Exception):
    """Whether the transaction is in the file, and whose the file is, has to be looked up."""


class DuckDBDriver:
    """The driver of one DuckDB file."""

    def __init__(self, file: DuckDBFile) -> None:
        self._file = file

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return KIND.spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding's columns; does not open the file."""
        for binding in spec.bindings:
            duckdb_tables.check_names(binding)
        return tuple(Validated({c.name: _verdict(b, c) for c in b.schema}) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Create the tables that are missing, recreate those that no longer fit, check the others."""
        return Applied("; ".join(await self._fit(spec, keep=True)))

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` would do, by doing it and rolling it back."""
        return await self._fit(spec, keep=False)

    async def _fit(self, spec: MaterializationSpec, *, keep: bool) -> tuple[str, ...]:
        def work(connection: duckdb.DuckDBPyConnection) -> list[str]:
            connection.begin()
            try:
                committed = duckdb_checkpoints.of_task(connection, spec.name)
                actions = [duckdb_tables.fit(connection, binding, committed) for binding in spec.bindings]
            except BaseException:
                connection.rollback()
                raise
            if keep:
                connection.commit()
            else:
                connection.rollback()
            return actions

        return tuple(action for action in await self._file.run(work) if action)

    async def open(self) -> Session:
        """Start a conversation; the file is not touched before `Open`."""
        return DuckDBSession(self._file)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return the rows of the binding's table, which are copied first: the file is locked no longer than that."""
        copied = Spool()

        def work(connection: duckdb.DuckDBPyConnection) -> Checkpoint | None:
            connection.begin()  # both are of one moment, also where this process has another connection
            duckdb_tables.contents(connection, binding, copied.add)
            held = duckdb_checkpoints.of_task(connection, task)
            return held[0] if len(set(held)) == 1 else None

        return Contents(await self._file.run(work), _tables(copied))


async def _tables(spool: Spool) -> AsyncGenerator[pa.Table, None]:
    with closing(spool):
        for table in spool.tables():
            yield table


def _verdict(binding: Binding, column: Column) -> Constraint:
    try:
        kind = duckdb_type(parse(column.name, column.type))
    except DefinitionError as error:
        return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
    if column.name not in binding.key:
        return Constraint(ConstraintKind.FIELD_OPTIONAL, f"stored as {kind.text}")
    return Constraint(ConstraintKind.LOCATION_REQUIRED, f"part of the key, stored as {kind.text}")


class DuckDBSession:
    """One conversation: it spools rows, and opens the file only at Open, Load and StartCommit."""

    def __init__(self, file: DuckDBFile) -> None:
        self._file = file
        self._said = Conversation()
        self._answers = Answers()
        self._bindings: tuple[Binding, ...] = ()
        self._held: Claim | None = None
        self._stores: dict[int, Spool] = {}

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, range=range_):
                self._bindings = spec.bindings
                self._held, committed = await self._claim(spec.name, range_)
                self._answer(Opened(committed, refuses=True))
                self._answer(Acknowledged())  # this driver never leaves rows staged
            case Acknowledge():
                pass
            case Load():
                await self._load(message)
            case Flush():
                self._answer(Flushed())
            case Store(binding, rows):
                self._stores.setdefault(binding, Spool()).add(duckdb_tables.placed(self._bindings[binding], rows))
            case StartCommit(checkpoint):
                self._answer(StartedCommit())
                await self._commit(checkpoint)
                self._answer(Acknowledged())

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Drop uncommitted rows."""
        for spool in self._stores.values():
            spool.close()
        self._stores.clear()

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    async def _claim(self, name: str, wanted: KeyRange) -> tuple[Claim, Checkpoint]:
        def work(connection: duckdb.DuckDBPyConnection) -> tuple[Claim, Checkpoint]:
            connection.begin()
            try:
                claimed = duckdb_checkpoints.claim(connection, name, wanted)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            return claimed

        return await self._file.run(work, again=True)

    async def _load(self, message: Load) -> None:
        binding = self._bindings[message.binding]

        def work(connection: duckdb.DuckDBPyConnection) -> pa.Table:
            return duckdb_tables.load(connection, Target.of(connection, binding), message.keys)

        found = await self._file.run(work)
        if len(found):
            self._answer(Loaded(message.binding, found))

    async def _commit(self, checkpoint: Checkpoint) -> None:
        held = self._held
        assert held is not None, "the grammar lets nothing be committed before Open"
        stores, self._stores = self._stores, {}
        try:
            await self._file.run(lambda connection: self._transact(connection, held, stores, checkpoint))
        except _OutcomeUnknownError as unknown:
            if await self._file.run(lambda connection: duckdb_checkpoints.look(connection, held)) != checkpoint:
                raise Unavailable(f"{self._file} did not commit: {unknown}") from unknown

    def _transact(
        self,
        connection: duckdb.DuckDBPyConnection,
        held: Claim,
        stores: Mapping[int, Spool],
        checkpoint: Checkpoint,
    ) -> None:
        """Run the whole transaction, in a worker thread; then drop the rows."""
        with ExitStack() as closing:
            for spool in stores.values():
                closing.callback(spool.close)
            self._write(connection, held, stores, checkpoint)

    def _write(
        self,
        connection: duckdb.DuckDBPyConnection,
        held: Claim,
        stores: Mapping[int, Spool],
        checkpoint: Checkpoint,
    ) -> None:
        connection.begin()
        try:
            committed = duckdb_checkpoints.of_task(connection, held.materialization)
            duckdb_checkpoints.advance(connection, held, checkpoint)
            targets = [Target.of(connection, binding) for binding in self._bindings]
            for target in targets:
                if all(each.of(target.binding.state_key) is None for each in committed):
                    duckdb_tables.empty(connection, target)
            for binding, rows in stores.items():
                duckdb_tables.store(connection, targets[binding], rows)
        except duckdb.TransactionException as error:  # another session has raised the fence, or is about to
            connection.rollback()
            raise _OutcomeUnknownError(sentence(error)) from error
        except BaseException:
            connection.rollback()
            raise
        try:
            connection.commit()
        except duckdb.Error as error:
            raise _OutcomeUnknownError(sentence(error)) from error


def _open(options: DuckDBOptions, clock: Clock) -> DuckDBDriver:
    return DuckDBDriver(DuckDBFile(clock, Path(options.path)))


KIND: Final = DriverKind("duckdb", DuckDBOptions, DuckDBResource, "https://duckdb.org/docs/", _open)
