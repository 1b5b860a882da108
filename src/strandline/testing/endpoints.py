"""Endpoints in memory, for the two patterns whose commit is the runtime's recovery log.

`KeyValueSession` writes directly, as to a key-value store: rows are there before the commit, and a crash leaves some of
them. `StagingSession` stages rows under a fresh name and applies them once the log has committed that name;
applying is idempotent by name.  Both insist on exact `EXISTS` flags, on one Load of a key in a transaction and, by
`Conversation`, on the grammar.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.errors import CorruptionError
from strandline.materialize.driver import Answers, Applied, Constraint, ConstraintKind, Contents, DriverSpec, Validated
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
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
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec, StateUpdate, canonical

Row = dict[str, Any]


@dataclass
class Endpoint:
    """The endpoint's durable data: rows by table and key; staged transactions by name; the names applied.

    ``commits``: how often rows became visible.
    """

    tables: dict[str, dict[str, Row]] = field(default_factory=dict)
    staged: dict[str, list[tuple[Binding, pa.Table]]] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    commits: int = 0

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return list(self.tables.get(table, {}).values())

    def store(self, binding: Binding, rows: Sequence[Row]) -> None:
        """Store and delete rows; `wrong` is called if a row's `EXISTS` is."""
        table = self.tables.setdefault(binding.resource, {})
        for given in rows:
            row = dict(given)
            exists, delete = row.pop(EXISTS), row.pop(DELETE)
            key = key_of(binding, row)
            if exists != (key in table):
                self.wrong(f"{binding.resource!r}: the runtime said exists = {exists} of key {key}")
            if delete:
                table.pop(key, None)
            else:
                table[key] = row

    def wrong(self, what: str) -> None:
        """Raise `CorruptionError`: the runtime does not know what is stored."""
        raise CorruptionError(what)


def key_of(binding: Binding, row: Row) -> str:
    """Return the row's key as a text."""
    return canonical([canonical(row[name]) for name in binding.key])


class MemoryDriver:
    """The driver of an `Endpoint`; ``session`` is the kind of session it opens."""

    def __init__(self, endpoint: Endpoint, session: type[MemorySession]) -> None:
        self._endpoint = endpoint
        self._session = session

    async def spec(self) -> DriverSpec:
        """Return an empty configuration schema."""
        return DriverSpec({}, {}, "")

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Accept every column; what an earlier binding has left in a table stays there."""
        fine = Constraint(ConstraintKind.FIELD_OPTIONAL, "a dictionary holds anything")
        return tuple(Validated(dict.fromkeys(b.schema.names, fine), empties=False) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Do nothing: a table is there when it has rows."""
        return Applied()

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return nothing: `apply` changes nothing."""
        return ()

    async def open(self) -> MemorySession:
        """Start a conversation."""
        return self._session(self._endpoint)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Return what the binding's resource holds."""
        rows = self._endpoint.rows(binding.resource)

        async def tables() -> AsyncGenerator[pa.Table, None]:
            yield pa.table({name: [row[name] for row in rows] for name in binding.schema.names})

        return Contents(self.checkpoint(task), tables())

    def checkpoint(self, task: str) -> Checkpoint | None:
        """Return None: the runtime's log keeps it."""
        return None


class MemoryEndpoint:
    """An endpoint whose sessions are of one kind, for the driver contract; it keeps no checkpoint."""

    def __init__(self, session: type[MemorySession], *, fences: bool = True) -> None:
        self.fences = fences
        self._endpoint = Endpoint()
        self._session = session

    def driver(self) -> MemoryDriver:
        """Return one more driver to the endpoint."""
        return MemoryDriver(self._endpoint, self._session)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return self._endpoint.rows(table)

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return None: the runtime's log keeps it."""
        return None


class MemorySession:
    """The common part of the two sessions: the grammar, and Loads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name = ""
        self.bindings: tuple[Binding, ...] = ()
        self.state: dict[str, Any] = {}
        self._said = Conversation()
        self._answers = Answers()
        self._asked: set[tuple[int, str]] = set()

    async def send(self, message: Request) -> None:
        """Check the grammar, process the message, and answer."""
        self._said = self._said.then(message)
        if isinstance(message, StartCommit):
            self._asked.clear()
        if isinstance(message, Open):
            self.bindings, self.state, self.name = message.spec.bindings, dict(message.state), message.spec.name
        for answer in await self.ask(message):
            self.say(answer)

    def say(self, answer: Response) -> None:
        """Give an answer."""
        self._said = self._said.then(answer)
        self._answers.put(answer)

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Do nothing: a conversation leaves nothing behind."""

    async def ask(self, message: Request) -> list[Response]:
        """Have the endpoint process ``message``, and return the answers."""
        return self.answers(message)

    def answers(self, message: Request) -> list[Response]:
        """Process ``message`` and return the answers."""
        raise NotImplementedError

    def loaded(self, message: Load) -> list[Response]:
        """Return the stored rows with the requested keys."""
        binding = self.bindings[message.binding]
        table = self.endpoint.tables.get(binding.resource, {})
        keys = [key_of(binding, row) for row in message.keys.to_pylist()]
        for key in keys:
            if (message.binding, key) in self._asked:
                self.endpoint.wrong(f"{binding.resource!r}: the runtime asked twice for key {key}")
            self._asked.add((message.binding, key))
        rows = [table[key] for key in keys if key in table]
        kinds = types.columns(binding.schema)
        columns = {name: pa.array([row[name] for row in rows], arrow(kind)) for name, kind in kinds}
        return [Loaded(message.binding, pa.table(columns))] if rows else []


class KeyValueSession(MemorySession):
    """Pattern 2: rows are written as they come."""

    def answers(self, message: Request) -> list[Response]:
        """Process ``message`` and return the answers."""
        match message:
            case Open():
                return [Opened(None)]
            case Acknowledge():
                return [Acknowledged()]
            case Load():
                return self.loaded(message)
            case Flush():
                return [Flushed()]
            case Store(binding):
                self.endpoint.store(self.bindings[binding], message.rows.to_pylist())
                self.endpoint.commits += 1
                return []
            case StartCommit():
                return [StartedCommit()]


class StagingSession(MemorySession):
    """Pattern 3: rows are staged under a name, and applied once the log has committed the name."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._stores: list[tuple[Binding, pa.Table]] = []

    def answers(self, message: Request) -> list[Response]:
        """Process ``message`` and return the answers."""
        match message:
            case Open():
                return [Opened(None)]
            case Acknowledge():
                return [self.acknowledge()]
            case Load():
                return self.loaded(message)
            case Flush():
                return [Flushed()]
            case Store(binding, rows):
                self._stores.append((self.bindings[binding], rows))
                return []
            case StartCommit():
                name = f"{self.name}-{len(self.endpoint.staged)}"
                self.endpoint.staged[name], self._stores = self._stores, []
                self.state = {"staged": name}
                return [StartedCommit(StateUpdate(self.state))]

    def acknowledge(self) -> Acknowledged:
        """Apply what the log has committed, unless it is applied already."""
        name = self.state.get("staged")
        if name is None:
            return Acknowledged()
        if name not in self.endpoint.applied:
            self.apply_staged(name)
            self.endpoint.applied.add(name)
            self.endpoint.commits += 1
        self.state = {}
        return Acknowledged(StateUpdate({"staged": None}, merge_patch=True))

    def apply_staged(self, name: str) -> None:
        """Store the rows that were staged under ``name``, but those of a table that is filled from the start since."""
        filled = {binding.resource: binding.state_key for binding in self.bindings}
        for binding, rows in self.endpoint.staged[name]:
            if filled.get(binding.resource, binding.state_key) == binding.state_key:
                self.endpoint.store(binding, rows.to_pylist())
