"""Endpoints of changes in memory, of both kinds, whose sessions may be of a wrong kind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from strandline.errors import FencedError
from strandline.materialize.driver import Answers, Applied, DriverSpec, Session, Validated
from strandline.materialize.drivers.rows import keys, objects, push_only
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, Binding, Checkpoint, MaterializationSpec, StateUpdate
from strandline.testing.contracts.drivers.push_contract import Pushed


@dataclass
class Stream:
    """The endpoint's durable data."""

    records: list[tuple[str, Pushed]] = field(default_factory=list)
    checkpoints: dict[str, tuple[int, Checkpoint]] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)


class StreamDriver:
    """The driver of a `Stream`; ``session`` is the kind of session that it opens."""

    def __init__(self, stream: Stream, session: type[StreamSession]) -> None:
        self._stream = stream
        self._session = session

    async def spec(self) -> DriverSpec:
        return DriverSpec({}, {}, "")

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        return tuple(push_only(binding, "a stream") for binding in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        return Applied()

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        return ()

    async def open(self) -> Session:
        return self._session(self._stream)


class StreamSession:
    """The common part: rows become records, whose numbers are those of the task."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.bindings: tuple[Binding, ...] = ()
        self.task = ""
        self.transaction = 0
        self.pushed: list[tuple[str, Pushed]] = []
        self._said = Conversation()
        self._answers = Answers()

    async def send(self, message: Request) -> None:
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec):
                self.bindings, self.task = spec.bindings, spec.name
                self.say(self.opened(message))
                self.say(Acknowledged())
            case Flush():
                self.say(Flushed())
            case Store(binding):
                self.store(self.bindings[binding], message)
            case StartCommit(checkpoint):
                self.commit(checkpoint)
            case Acknowledge() | Load():
                pass

    async def receive(self) -> Response:
        return await self._answers.take()

    async def close(self) -> None:
        pass

    def say(self, answer: Response) -> None:
        self._said = self._said.then(answer)
        self._answers.put(answer)

    def store(self, binding: Binding, message: Store) -> None:
        rows = message.rows
        values = objects(rows, [column.name for column in binding.columns]).to_pylist()
        named = keys(rows, binding.key).to_pylist() if binding.key else [None] * len(rows)
        for value, key, gone in zip(values, named, rows[DELETE].to_pylist(), strict=True):
            identity = self.identity(binding, len(self.pushed))
            record = Pushed(identity, key and json.loads(key), None if gone else json.loads(value))
            self.pushed.append((binding.resource, record))

    def identity(self, binding: Binding, ordinal: int) -> tuple[Any, ...]:
        return (self.task, self.transaction + 1, ordinal)

    def opened(self, message: Open) -> Opened:
        raise NotImplementedError

    def commit(self, checkpoint: Checkpoint) -> None:
        raise NotImplementedError


class TransactionalSession(StreamSession):
    """Records and checkpoint are there together, or neither; an older session commits nothing."""

    fence = 0

    def opened(self, message: Open) -> Opened:
        self.fence = self.stream.fences[self.task] = self.stream.fences.get(self.task, 0) + 1
        self.transaction, checkpoint = self.stream.checkpoints.get(self.task, (0, NOTHING))
        return Opened(checkpoint)

    def commit(self, checkpoint: Checkpoint) -> None:
        self.say(StartedCommit())
        self.refuse_if_fenced()
        self.stream.records += self.pushed
        self.transaction += 1
        self.stream.checkpoints[self.task] = (self.transaction, checkpoint)
        self.pushed = []
        self.say(Acknowledged())

    def refuse_if_fenced(self) -> None:
        if self.stream.fences[self.task] != self.fence:
            raise FencedError(f"{self.task!r} was fenced off by another session")


class RepeatingSession(StreamSession):
    """Records are there as they come; the runtime's log commits, and a transaction that it did not is pushed again."""

    def opened(self, message: Open) -> Opened:
        self.transaction = message.state.get("transaction", 0)
        return Opened(None)

    def store(self, binding: Binding, message: Store) -> None:
        before = len(self.pushed)
        super().store(binding, message)
        self.stream.records += self.pushed[before:]

    def commit(self, checkpoint: Checkpoint) -> None:
        self.transaction += 1
        self.pushed = []
        self.say(StartedCommit(StateUpdate({"transaction": self.transaction}, merge_patch=True)))
        self.say(Acknowledged())


class StreamEndpoint:
    """A `PushEndpointUnderTest` of either kind of session."""

    stride = 1

    def __init__(self, session: type[StreamSession] = TransactionalSession) -> None:
        self.exactly_once = issubclass(session, TransactionalSession)
        self._stream = Stream()
        self._session = session

    def driver(self) -> StreamDriver:
        """Return one more driver."""
        return StreamDriver(self._stream, self._session)

    def pushed(self, resource: str) -> list[Pushed]:
        """Return the records of a resource."""
        return [record for of, record in self._stream.records if of == resource]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of a task, if this kind keeps one."""
        return self._stream.checkpoints.get(name, (0, NOTHING))[1] if self.exactly_once else None
