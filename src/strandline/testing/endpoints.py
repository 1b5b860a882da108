"""Endpoints in memory, for the two patterns whose commit is the runtime's recovery log.

`KeyValueSession` writes directly, as to a key-value store: rows are there before the commit, and a crash leaves some of
them. `StagingSession` stages rows under a fresh name and applies them once the log has committed that name;
applying is idempotent by name.  Both insist on exact `EXISTS` flags and, by `Conversation`, on the grammar.

Source: design page "materialize" (the four patterns, 2 and 3).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from strandline.errors import CorruptionError
from strandline.materialize.driver import Applied, Constraint, ConstraintKind, DriverSpec, Validated
from strandline.materialize.protocol.grammar import Conversation
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
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
from strandline.materialize.protocol.spec import canonical
from strandline.materialize.protocol.state import StateUpdate
from strandline.materialize.protocol.task import Binding, MaterializationSpec

Row = dict[str, Any]


@dataclass
class Endpoint:
    """The endpoint's durable data: rows by table and key; staged transactions by name; the names applied."""

    tables: dict[str, dict[str, Row]] = field(default_factory=dict)
    staged: dict[str, list[Store]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return list(self.tables.get(table, {}).values())

    def store(self, binding: Binding, message: Store) -> None:
        """Store and delete rows.  Raises `CorruptionError` if a row's `EXISTS` is wrong."""
        table = self.tables.setdefault(binding.resource, {})
        for row in message.rows.to_pylist():
            exists, delete = row.pop(EXISTS), row.pop(DELETE)
            key = key_of(binding, row)
            if exists != (key in table):
                raise CorruptionError(f"{binding.resource!r}: the runtime said exists = {exists} of key {key}")
            if delete:
                del table[key]
            else:
                table[key] = row


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
        """Accept every column."""
        fine = Constraint(ConstraintKind.FIELD_OPTIONAL, "a dictionary holds anything")
        return tuple(Validated(dict.fromkeys(b.schema.names, fine)) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Do nothing: a table is there when it has rows."""
        return Applied()

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return nothing: `apply` changes nothing."""
        return ()

    async def open(self) -> MemorySession:
        """Start a conversation."""
        return self._session(self._endpoint)


class MemorySession:
    """The common part of the two sessions: the grammar, and Loads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._bindings: tuple[Binding, ...] = ()
        self._state: dict[str, Any] = {}
        self._said = Conversation()
        self._answers: deque[Response] = deque()

    async def send(self, message: Request) -> None:
        """Check the grammar, process the message, and answer."""
        self._said = self._said.then(message)
        if isinstance(message, Open):
            self._bindings, self._state = message.spec.bindings, dict(message.state)
        for answer in self.answers(message):
            self._said = self._said.then(answer)
            self._answers.append(answer)

    async def receive(self) -> Response:
        """Return the next answer."""
        return self._answers.popleft()

    async def close(self) -> None:
        """Forget the conversation."""
        self._answers.clear()

    def answers(self, message: Request) -> list[Response]:
        """Process ``message`` and return the answers."""
        raise NotImplementedError

    def loaded(self, message: Load) -> list[Response]:
        """Return the stored rows with the requested keys."""
        binding = self._bindings[message.binding]
        table = self._endpoint.tables.get(binding.resource, {})
        keys = [key_of(binding, row) for row in message.keys.to_pylist()]
        places = [row for row, key in enumerate(keys) if key in table]
        # The runtime uses only the key columns.
        return [Loaded(message.binding, message.keys.take(places))] if places else []


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
                self._endpoint.store(self._bindings[binding], message)
                return []
            case StartCommit():
                return [StartedCommit()]


class StagingSession(MemorySession):
    """Pattern 3: rows are staged under a name, and applied once the log has committed the name."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._stores: list[Store] = []

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
            case Store():
                self._stores.append(message)
                return []
            case StartCommit():
                name = f"stage-{len(self._endpoint.staged)}"
                self._endpoint.staged[name], self._stores = self._stores, []
                self._state = {"staged": name}
                return [StartedCommit(StateUpdate(self._state))]

    def acknowledge(self) -> Acknowledged:
        """Apply what the log has committed, unless it is applied already."""
        name = self._state.get("staged")
        if name is None:
            return Acknowledged()
        if name not in self._endpoint.applied:
            self.apply_staged(name)
            self._endpoint.applied.append(name)
        self._state = {}
        return Acknowledged(StateUpdate({"staged": None}, merge_patch=True))

    def apply_staged(self, name: str) -> None:
        """Store the rows that were staged under ``name``."""
        for store in self._endpoint.staged[name]:
            self._endpoint.store(self._bindings[store.binding], store)
