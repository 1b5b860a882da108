"""The transactional producer of one key range of a task; all calls block, and at most one runs at a time.

*Open* raises the epoch of the range's transactional id, and of the id of every other range that overlaps it: the
brokers abort what their producers left open, and refuse whatever these do later.  *Commit* adds the checkpoint as the
last message of the transaction, so that other tasks' checkpoints wait for ours only while it is committed.

If a commit's outcome is not known, the session ends: the next one's *open* waits until the brokers have decided, and
reads the checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import confluent_kafka as kafka

from strandline.connections.kafka import ANSWER_SECONDS_MAX
from strandline.errors import FencedError, StrandlineError, Unavailable
from strandline.materialize.drivers.kafka.client import AFTER_A_FENCE, Cluster
from strandline.materialize.drivers.kafka.options import DELIVERY_SECONDS_MAX, for_producer
from strandline.materialize.drivers.kafka.progress import (
    CHECKPOINT,
    OPENED,
    PARTITION,
    Held,
    Progress,
    key_of,
    value_of,
)
from strandline.materialize.protocol.task import Checkpoint

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
    """See the module.  After an error other than `DefinitionError` it can only be closed."""

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
