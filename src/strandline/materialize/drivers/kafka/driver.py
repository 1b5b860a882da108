"""Kafka: the endpoint is authoritative, its messages and its checkpoint are committed in one transaction.

It is pushed to and never read (pattern 4), but for its checkpoint, which is in a topic of its own (pattern 1): so a
consumer that reads what is committed (`isolation.level=read_committed`) gets every change exactly once.

Rows become messages as they come, in bounded memory: the brokers hold the transaction, and no consumer sees it before
the commit.

Law: M3.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import DefinitionError, InvalidUsage, ProtocolViolation
from strandline.materialize.answers import Answers
from strandline.materialize.driver import TABLE_GONE, Applied, Contents, DriverSpec, Session, Validated
from strandline.materialize.drivers.kafka.client import Cluster
from strandline.materialize.drivers.kafka.options import KafkaEndpoint
from strandline.materialize.drivers.kafka.progress import Held, Progress
from strandline.materialize.drivers.kafka.writer import Message, Writer
from strandline.materialize.drivers.rows.json_texts import keys, objects
from strandline.materialize.drivers.rows.verdicts import push_only
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.grammar import Conversation
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
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
from strandline.materialize.protocol.task import Binding, MaterializationSpec

SLICE_ROWS: Final = 10_000
"""So many rows are texts at a time."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaDriver:
    """The driver of one cluster."""

    def __init__(self, options: KafkaEndpoint, spec: DriverSpec) -> None:
        self._cluster = Cluster(options)
        self._spec = spec

    async def spec(self) -> DriverSpec:
        """Return which configuration this driver takes."""
        return self._spec

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        """Return the verdict on each binding; asks no broker."""
        for binding in spec.bindings:
            self._check_name(binding)
        return tuple(push_only(binding, "Kafka") for binding in spec.bindings)

    def _check_name(self, binding: Binding) -> None:
        topic = binding.resource
        if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
            raise DefinitionError(
                f"{topic!r} cannot be a topic of Kafka: it takes 1 to 249 characters of a-z, A-Z, 0-9, '.', '_', '-'"
            )
        if topic == self._cluster.options.checkpoints:
            raise DefinitionError(f"{topic!r} cannot be filled: the driver keeps its checkpoints there")

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Create the topics that are missing."""

        def work() -> tuple[str, ...]:
            missing = self._missing(spec)
            self._cluster.create(missing)
            self._cluster.require_compacted()
            return missing

        return Applied("; ".join(map(_created, await to_its_end(work))))

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        """Return what `apply` would do."""
        return tuple(map(_created, await to_its_end(lambda: self._missing(spec))))

    def _missing(self, spec: MaterializationSpec) -> tuple[str, ...]:
        checkpoints = self._cluster.options.checkpoints
        missing = self._cluster.missing([checkpoints, *(binding.resource for binding in spec.bindings)])
        if missing and checkpoints not in missing:
            progress = Progress.of(spec.name, self._cluster.records())
            for binding in spec.bindings:
                filled = any(at.of(binding.state_key) is not None for _, at in progress.committed.values())
                if binding.resource in missing and filled:
                    about = {"collection": binding.collection, "item": binding.task}
                    raise DefinitionError(TABLE_GONE.said(table=f"topic {binding.resource!r}", **about))
        return missing

    async def open(self) -> Session:
        """Start a conversation; no broker is asked before `Open`."""
        return KafkaSession(self._cluster)

    async def contents(self, task: str, binding: Binding) -> Contents:
        """Raise `InvalidUsage`: a topic holds changes, and brokers delete old ones by its own rules."""
        raise InvalidUsage(
            f"topic {binding.resource!r} holds changes of {binding.collection!r}, of which Kafka deletes old ones by "
            "the topic's own rules: it cannot be compared with the collection; verify a consumer of it instead"
        )


def _created(topic: str) -> str:
    return f"created topic {topic!r}"


class KafkaSession:
    """One conversation, of one producer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._said = Conversation()
        self._answers = Answers()
        self._bindings: tuple[Binding, ...] = ()
        self._writer: Writer | None = None

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, range=range_):
                self._bindings = spec.bindings
                self._writer = writer = Writer(self._cluster, Held(spec.name, range_))
                base = await to_its_end(lambda: writer.open(spec.state_keys), writer.stop)
                self._answer(Opened(base))
                self._answer(Acknowledged())  # nothing is ever staged
            case Acknowledge():
                pass
            case Load(binding):
                raise ProtocolViolation(f"Load of binding {binding} came, whose endpoint can only be pushed to")
            case Flush():
                self._answer(Flushed())
            case Store(binding, rows):
                await self._push(self._bindings[binding], rows)
            case StartCommit(checkpoint):
                writer = self._writing
                self._answer(StartedCommit())
                await to_its_end(lambda: writer.commit(checkpoint), writer.stop)
                self._answer(Acknowledged())

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Abort what is not committed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await to_its_end(writer.close)

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    @property
    def _writing(self) -> Writer:
        assert self._writer is not None, "the grammar lets nothing be written before Open"
        return self._writer

    async def _push(self, binding: Binding, rows: pa.Table) -> None:
        writer = self._writing

        def work() -> None:
            for start in range(0, len(rows), SLICE_ROWS):
                writer.push(binding.resource, messages(binding, rows.slice(start, SLICE_ROWS)))

        await to_its_end(work, writer.stop)


def messages(binding: Binding, rows: pa.Table) -> list[Message]:
    """Return the messages of the rows of a `Store`: a row that is gone has a key and no value."""
    values = objects(rows, [column.name for column in binding.columns])
    values = pc.if_else(rows[DELETE].combine_chunks(), None, values).cast(pa.binary()).to_pylist()
    if not binding.key:
        return [Message(None, value) for value in values]
    return list(map(Message, keys(rows, binding.key).cast(pa.binary()).to_pylist(), values))
