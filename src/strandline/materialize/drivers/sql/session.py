"""One conversation with a database that is authoritative.

The session spools rows from Store to StartCommit (in memory up to a limit, else in a temporary file), so that the
database has a transaction open only for the commit.  It says that the commit has begun, commits, and then says that the
rows can be read.  If the outcome of COMMIT is not known, the session reads the checkpoint row: only this session has
its fence, so the row shows the outcome.

A binding that is not in the committed checkpoint begins from nothing, so the transaction that stores its first rows
also empties its table: readers see the old contents until they see the new ones.  A table that this task has never
filled, or has given up, must be empty then: other programs may have written to it since it was adopted.

Laws: M2, M3.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import pyarrow as pa

from strandline.materialize.answers import Answers
from strandline.materialize.drivers.sql import checkpoints, tables
from strandline.materialize.drivers.sql.checkpoints import Claim
from strandline.materialize.drivers.sql.connection import Connection, Database
from strandline.materialize.drivers.sql.dialect import Dialect
from strandline.materialize.drivers.sql.target import Pending, Target
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
from strandline.materialize.protocol.task import NOTHING, Checkpoint, KeyRange, MaterializationSpec


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
