"""The driver of Kafka: the endpoint is authoritative, and commits messages and their checkpoint in one transaction.

Kafka is pushed to and never read (pattern 4), except for the checkpoint, which is in a topic of its own (pattern 1).
So a consumer that reads only committed messages (`isolation.level=read_committed`) gets every change exactly once.
Rows become messages as they come, in bounded memory: the brokers hold the transaction, and no consumer sees it before
the commit.

Law: M3.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import confluent_kafka as kafka
import pyarrow as pa
import pyarrow.compute as pc

from strandline.connections.kafka import ANSWER_SECONDS_MAX
from strandline.errors import (
    DefinitionError,
    FencedError,
    InvalidUsage,
    ProtocolViolation,
    StrandlineError,
    Unavailable,
)
from strandline.materialize.driver import TABLE_GONE, Answers, Applied, Contents, DriverSpec, Session, Validated
from strandline.materialize.drivers.kafka.client import (
    AFTER_A_FENCE,
    CHECKPOINT,
    OPENED,
    PARTITION,
    Cluster,
    Held,
    Progress,
    key_of,
    value_of,
)
from strandline.materialize.drivers.kafka.options import DELIVERY_SECONDS_MAX, KafkaEndpoint, for_producer
from strandline.materialize.drivers.rows import keys, objects, push_only
from strandline.materialize.drivers.threads import to_its_end
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
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec

TRIES_MAX: Final = 2 * DELIVERY_SECONDS_MAX // ANSWER_SECONDS_MAX
"""How often a call that may be repeated is repeated."""
FENCES_MAX: Final = 10
"""After so many rounds of fencing, ranges still appear: their sessions are opened all the time."""
SERVED_EVERY: Final = 1_000
"""After so many messages the client's events are served."""


Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class Message(NamedTuple):
    """What a row becomes."""

    key: bytes | None
    value: bytes | None


class Writer:
    """See the module.  After an error other than `DefinitionError` it can only be closed.

    It is the transactional producer of one key range of a task.  All calls block, and at most one runs at a time.

    *Open* raises the epoch of the range's transactional id, and of the id of every other range that overlaps it: the
    brokers abort what the producers of these ids left open, and refuse what they send later.  *Commit* adds the
    checkpoint as the last message of the transaction, so that other tasks' checkpoints wait for ours only while it is
    committed.

    If a commit's outcome is not known, the session ends: *open* of the next session waits until the brokers have
    decided, and reads the checkpoint.
    """

    def __init__(self, cluster: Cluster, held: Held) -> None:
        self._cluster = cluster
        self._held = held
        self._producer: kafka.Producer | None = None
        self._stopping = threading.Event()
        self._failed: Any = None
        self._opened_at = -1
        self._transaction = 0
        self._ordinal = 0
        self._open = False

    def stop(self) -> None:
        """Have the call that runs, and all later ones but `close`, fail soon; from any thread."""
        self._stopping.set()

    def open(self, state_keys: Collection[str]) -> Checkpoint:
        """Fence off every session that overlaps this range, and take the range out of theirs; return its checkpoint."""
        topic = self._cluster.options.checkpoints
        self._producer = self._initialized(self._held)
        self._begun()
        key, seen = key_of(self._held, OPENED), list[int]()
        self._produce(topic, Message(key, b"{}"), partition=PARTITION)
        self._commit("cannot be opened")
        fenced: frozenset[Held] = frozenset()
        for _ in range(FENCES_MAX):
            records = self._cluster.records()
            progress = Progress.of(self._held.task, records)
            seen = [record.offset for record in records if record.key == key]
            others = progress.overlapping(self._held) - fenced
            if not others:
                break
            for other in sorted(others, key=lambda each: (each.range.begin, each.range.end)):
                self._initialized(other)  # it is dropped at once: only the higher epoch stays
            fenced |= others
        else:
            raise Unavailable(f"materialization {self._held.task!r}: sessions of its key ranges fence each other")
        self._opened_at = seen[0]
        begun = progress.begin(self._held, state_keys)
        if begun.changes:
            self._begun()
            for held, last in begun.changes.items():
                value = None if last is None else value_of(*last)
                self._produce(topic, Message(key_of(held, CHECKPOINT), value), partition=PARTITION)
            self._commit("does not take a range of keys over")
        self._transaction = begun.transaction
        return begun.checkpoint

    def push(self, topic: str, messages: Iterable[Message]) -> None:
        """Append messages to the transaction, which begins with the first of them; wait while too many are queued."""
        producer = self._begun()
        headers: Headers = [("task", self._held.label), ("transaction", str(self._transaction + 1))]
        for count, message in enumerate(messages, 1):
            self._produce(topic, message, headers=[*headers, ("ordinal", str(self._ordinal))])
            self._ordinal += 1
            if not count % SERVED_EVERY:
                producer.poll(0)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit the transaction together with ``checkpoint``."""
        self._begun()
        value = value_of(self._transaction + 1, checkpoint)
        message = Message(key_of(self._held, CHECKPOINT), value)
        self._produce(self._cluster.options.checkpoints, message, partition=PARTITION)
        self._commit("does not commit")
        self._transaction += 1
        self._ordinal = 0

    def close(self) -> None:
        """Abort what is open, and drop the producer."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with suppress(kafka.KafkaException):
            producer.purge()
            if self._open:
                producer.abort_transaction(ANSWER_SECONDS_MAX)

    # -----------------------------------------------------------------------------------------------------------------
    def _initialized(self, held: Held) -> kafka.Producer:
        """Return a producer of a range; every older one can commit nothing from now on."""
        given = for_producer(self._cluster.options, held.transactional_id(self._cluster.options.checkpoints))
        heard = {"on_delivery": self._undelivered, "delivery.report.only.error": True}
        try:
            producer = kafka.Producer({**self._cluster.settings(given), **heard})
        except kafka.KafkaException as error:
            raise self._cluster.failure(error.args[0], "cannot be written to") from error
        for _ in self._tries("does not begin transactions"):
            try:
                producer.init_transactions(ANSWER_SECONDS_MAX)
            except kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise self._error(error.args[0], "does not begin transactions") from error
            else:
                return producer
        raise AssertionError("the tries end with an error")

    def _begun(self) -> kafka.Producer:
        assert self._producer is not None, "the grammar lets nothing be pushed before Open"
        if not self._open:
            try:
                self._producer.begin_transaction()
            except kafka.KafkaException as error:
                raise self._error(error.args[0], "does not begin a transaction") from error
            self._open = True
        return self._producer

    def _produce(self, topic: str, message: Message, *, partition: int = -1, headers: Headers | None = None) -> None:
        assert self._producer is not None
        while True:
            if self._failed is not None:
                raise self._error(self._failed, f"did not take a message of topic {topic!r}")
            try:
                self._producer.produce(topic, message.value, message.key, partition, headers=headers)
            except BufferError:
                self._require_going_on()
                self._producer.poll(0.1)
            except kafka.KafkaException as error:
                raise self._error(error.args[0], f"did not take a message of topic {topic!r}") from error
            else:
                return

    def _commit(self, what: str) -> None:
        assert self._producer is not None
        for _ in self._tries(what):
            try:
                self._producer.commit_transaction(ANSWER_SECONDS_MAX)
            except kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise self._error(error.args[0], what) from error
            else:
                self._open = False
                return

    def _tries(self, what: str) -> Iterator[None]:
        for _ in range(TRIES_MAX):
            self._require_going_on()
            yield
        raise self._cluster.silent(what, TRIES_MAX * ANSWER_SECONDS_MAX)

    def _require_going_on(self) -> None:
        if self._stopping.is_set():
            raise Unavailable(f"materialization {self._held.label!r} is stopped")

    def _undelivered(self, error: Any, _message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _error(self, error: Any, what: str) -> StrandlineError:
        """Return our error for one of librdkafka's.

        Brokers also fence a producer off whose transaction took too long.  So another session must be there before one
        is blamed: this one must not stop for good.
        """
        if error.code() in AFTER_A_FENCE and self._opened_at >= 0:
            progress = Progress.of(self._held.task, self._cluster.records())
            if progress.taken_over(self._held, self._opened_at):
                return FencedError(f"materialization {self._held.label!r} was fenced off by another session")
        return self._cluster.failure(error, what)


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
