"""The Kafka cluster as this driver asks it: an administrator, a consumer, and the topic of checkpoints.

Every call blocks for a bounded time, and raises librdkafka's errors as ours.

The topic of checkpoints says where each materialization and key range is, and which session opened it last.  It is
compacted, so each key keeps its last record.  A range has two keys.  ``opened``: every session writes it before it
reads the topic, so of two sessions that overlap at least one sees the other.  ``checkpoint``: each transaction writes
it together with its messages, so both are there or neither is.  The ranges that have a ``checkpoint`` do not overlap
(`tiles`): a session that opens a new range takes it out of the others.

Both keys are written with the transactional id of the range.  A session that opens the range raises the epoch of that
id; from then on an older session can commit nothing (law M3).

Law: M3.

Source: https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final
from urllib.parse import quote

import confluent_kafka as kafka
import msgspec
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from strandline.connections.kafka import ANSWER_SECONDS_MAX, SILENT, Settings, for_client
from strandline.errors import ConfigError, CorruptionError, DefinitionError, StrandlineError, Unavailable
from strandline.materialize.drivers.kafka.options import KafkaEndpoint, for_progress
from strandline.materialize.drivers.rows import label
from strandline.materialize.drivers.tiles import checkpoint_of, left_of
from strandline.materialize.protocol.refusals import DENIED, OPTION_REFUSED, REFUSED, UNSUITED
from strandline.materialize.protocol.task import Checkpoint, KeyRange
from strandline.store.secret import revealed

PARTITION: Final = 0
"""The only partition that is written, so that the records have one order."""


@dataclass(frozen=True, slots=True)
class Held:
    """One key range of one materialization.

    >>> from strandline.materialize.protocol.task import WHOLE
    >>> Held("m", WHOLE).label, Held("m", KeyRange(0, 9)).label
    ('m', 'm[00000000-00000009]')
    >>> Held("a b", WHOLE).transactional_id("strandline-checkpoints")
    'strandline-checkpoints.a%20b.00000000-ffffffff'
    """

    task: str
    range: KeyRange

    @property
    def label(self) -> str:
        """The name that its messages carry."""
        return label(self.task, self.range)

    def transactional_id(self, topic: str) -> str:
        """Return the id under which it writes; ``topic``: that of the checkpoints."""
        return f"{topic}.{quote(self.task, safe='')}.{self.range}"

    def overlaps(self, other: Held) -> bool:
        """Return whether both are of one task and share a key hash."""
        ranges = self.range, other.range
        return self.task == other.task and max(r.begin for r in ranges) <= min(r.end for r in ranges)


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a record."""

    task: str
    begin: int
    end: int
    kind: str

    @property
    def held(self) -> Held:
        """The range that it is about."""
        return Held(self.task, KeyRange(self.begin, self.end))


class Committed(msgspec.Struct, frozen=True):
    """The value of a ``checkpoint``: that of the last transaction, and which one it was."""

    transaction: int
    times: dict[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read."""

    offset: int
    key: bytes
    value: bytes | None


OPENED: Final = "opened"
CHECKPOINT: Final = "checkpoint"
_encoder: Final = msgspec.json.Encoder(order="deterministic")
_keys: Final = msgspec.json.Decoder(Key)
_values: Final = msgspec.json.Decoder(Committed)


def key_of(held: Held, kind: str) -> bytes:
    """Return the key of a record of ``held``."""
    return _encoder.encode(Key(held.task, held.range.begin, held.range.end, kind))


def value_of(transaction: int, checkpoint: Checkpoint) -> bytes:
    """Return the value of a ``checkpoint``."""
    return _encoder.encode(Committed(transaction, dict(checkpoint.times)))


@dataclass(frozen=True, slots=True)
class Beginning:
    """The last transaction and the checkpoint of a range, and what the topic must say of its ranges from now on.

    ``changes``: for each range its last commit, or None if it is no range any longer.
    """

    transaction: int
    checkpoint: Checkpoint
    changes: Mapping[Held, tuple[int, Checkpoint] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the topic says of one task: the offset of the last ``opened`` of each range, and its last commit."""

    opened: Mapping[Held, int]
    committed: Mapping[Held, tuple[int, Checkpoint]]

    @staticmethod
    def of(task: str, records: Iterable[Record]) -> Progress:
        """Return what ``records`` (all of the topic, in order) say of ``task``.

        Raises `CorruptionError`: another program wrote to the topic.
        """
        opened: dict[Held, int] = {}
        committed: dict[Held, tuple[int, Checkpoint]] = {}
        for record in records:
            try:
                key = _keys.decode(record.key)
                if key.task != task:
                    continue
                if record.value is None:
                    committed.pop(key.held, None)
                elif key.kind == OPENED:
                    opened[key.held] = record.offset
                else:
                    found = _values.decode(record.value)
                    committed[key.held] = (found.transaction, Checkpoint(tuple(sorted(found.times.items()))))
            except (msgspec.MsgspecError, ValueError) as error:
                about = {"has": f"has record {record.offset} of another program ({error})", "so": "it cannot be read"}
                to = "a topic without that record"
                raise CorruptionError(UNSUITED.said(endpoint="the topic of checkpoints", **about, to=to)) from error
        return Progress(opened, committed)

    def overlapping(self, held: Held) -> frozenset[Held]:
        """Return the other ranges that were ever opened and overlap ``held``."""
        return frozenset(other for other in {*self.opened, *self.committed} if other != held and other.overlaps(held))

    def taken_over(self, held: Held, offset: int) -> bool:
        """Return whether a session that overlaps ``held`` was opened after the one at ``offset``."""
        return any(at > offset and other.overlaps(held) for other, at in self.opened.items())

    def begin(self, held: Held, state_keys: Collection[str]) -> Beginning:
        """Return from where ``held`` goes on.  Raises `DefinitionError` as `tiles.checkpoint_of`."""
        others = {other.range: found for other, found in self.committed.items() if other.overlaps(held)}
        checkpoints = {range_: checkpoint for range_, (_, checkpoint) in others.items()}
        base = checkpoint_of(held.task, held.range, checkpoints, state_keys)
        transaction = max((number for number, _ in others.values()), default=0)
        if held.range in others or not others:
            return Beginning(transaction, base)
        changes: dict[Held, tuple[int, Checkpoint] | None] = {Held(held.task, range_): None for range_ in others}
        for range_, found in others.items():
            changes |= {Held(held.task, left): found for left in left_of(range_, [held.range])}
        return Beginning(transaction, base, {**changes, held: (transaction, base)})


CREATED_SECONDS_MAX: Final = 30
SETTLED_SECONDS_MAX: Final = 30
"""How long transactions of other tasks may keep the newest checkpoints from being read."""
READ_AT_ONCE: Final = 1_000
KNOWN_LOOKS_MAX: Final = 50
KNOWN_PAUSE_S: Final = 0.1
PAUSE: Final = Event()
"""Never set: waiting for it is a pause."""
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),  # only closed segments are compacted, and all of them are read at Open
}
_Error: Final = kafka.KafkaError
AFTER_A_FENCE: Final = frozenset(
    {
        _Error.PRODUCER_FENCED,
        _Error.INVALID_PRODUCER_EPOCH,
        _Error.INVALID_TXN_STATE,
        _Error._FENCED,  # noqa: SLF001 - public in C, as are those below
        _Error._FATAL,  # noqa: SLF001
        _Error._STATE,  # noqa: SLF001
        _Error._PURGE_QUEUE,  # noqa: SLF001
    }
)
"""What a client says whose producer was fenced off, or its transaction ended, by the brokers."""
_NOT_ALLOWED: Final = frozenset(
    {
        _Error.TOPIC_AUTHORIZATION_FAILED,
        _Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _Error.CLUSTER_AUTHORIZATION_FAILED,
        _Error.GROUP_AUTHORIZATION_FAILED,
    }
)
_WRONG: Final = frozenset(
    {
        _Error.INVALID_TRANSACTION_TIMEOUT,
        _Error.INVALID_REPLICATION_FACTOR,
        _Error.INVALID_PARTITIONS,
        _Error._INVALID_ARG,  # noqa: SLF001 - public in C; of a client that cannot be made
    }
)
_REFUSED: Final = frozenset({_Error.MSG_SIZE_TOO_LARGE, _Error.TOPIC_EXCEPTION})


class Cluster:
    """A cluster as an administrator and a consumer see it; also what the brokers last complained of."""

    def __init__(self, options: KafkaEndpoint) -> None:
        self.options = options
        self.name = f"Kafka at {options.servers}"
        self._told = ""
        self._admins: list[AdminClient] = []

    def settings(self, given: Settings) -> dict[str, Any]:
        """Return settings for a client whose complaints are heard here and not printed."""
        return {**revealed(given), "logger": SILENT, "error_cb": self._hear}

    def _hear(self, error: Any) -> None:
        if error.code() != _Error._ALL_BROKERS_DOWN or not self._told:  # noqa: SLF001 - public in C
            self._told = error.str()

    def failure(self, error: Any, what: str) -> StrandlineError:
        """Return our error for a `KafkaError` that came of ``what``, a clause."""
        told = f" ({self._told})" if self._told and self._told != error.str() else ""
        self._told = ""
        code = error.code()
        why = f"{what}: {error.str()}{told}"
        if code in _NOT_ALLOWED:
            return ConfigError(DENIED.said(endpoint=self.name, why=why))
        if code in _WRONG:
            return ConfigError(OPTION_REFUSED.said(endpoint=self.name, why=why))
        if code in _REFUSED:
            return DefinitionError(REFUSED.said(endpoint=self.name, why=why))
        return Unavailable(f"{self.name} {why}")

    def silent(self, what: str, seconds: float) -> Unavailable:
        """Return the error for a call that did not come to its end."""
        why, self._told = f": {self._told}" if self._told else "", ""
        return Unavailable(f"{self.name} {what} for {seconds:g} s{why}")

    # --- topics -------------------------------------------------------------------------------------------------------
    def missing(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Return the topics of ``wanted`` that are not there."""
        try:
            there = self._admin().list_topics(timeout=ANSWER_SECONDS_MAX).topics
        except kafka.KafkaException as error:
            raise self.failure(error.args[0], "does not answer") from error
        return tuple(topic for topic in wanted if topic not in there)

    def create(self, topics: Sequence[str]) -> None:
        """Create topics; one that another process has just created is fine."""
        given = self.options
        several = -1 if given.partitions is None else given.partitions
        replicas = -1 if given.replication_factor is None else given.replication_factor
        new = [
            NewTopic(topic, 1, replicas, config=COMPACTED)
            if topic == given.checkpoints
            else NewTopic(topic, several, replicas)
            for topic in topics
        ]
        if not new:
            return
        for topic, created in self._admin().create_topics(new, request_timeout=CREATED_SECONDS_MAX).items():
            try:
                created.result(CREATED_SECONDS_MAX)
            except kafka.KafkaException as error:
                if error.args[0].code() != _Error.TOPIC_ALREADY_EXISTS:
                    raise self.failure(error.args[0], f"does not create topic {topic!r}") from error

    def require_compacted(self) -> None:
        """Raise `ConfigError` if the topic of checkpoints forgets them."""
        topic = self.options.checkpoints
        policy = self._policy(topic)
        for _ in range(KNOWN_LOOKS_MAX):  # a broker may learn of a topic a little after it was created
            if policy is not None:
                break
            PAUSE.wait(KNOWN_PAUSE_S)
            policy = self._policy(topic)
        if policy is None:
            raise Unavailable(f"{self.name} has created topic {topic!r}, and does not know it yet")
        if policy != COMPACTED["cleanup.policy"]:
            about = {
                "has": f"has topic {topic!r} with cleanup.policy = {policy}",
                "so": "checkpoints are deleted some day",
            }
            raise ConfigError(UNSUITED.said(endpoint=self.name, **about, to="cleanup.policy = compact"))

    def _policy(self, topic: str) -> str | None:
        """Return what becomes of a topic's old records; None if the broker does not know the topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self._admin().describe_configs([resource], request_timeout=ANSWER_SECONDS_MAX)[resource]
            return str(found.result(2 * ANSWER_SECONDS_MAX)["cleanup.policy"].value)
        except kafka.KafkaException as error:
            if error.args[0].code() == _Error.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.failure(error.args[0], f"does not describe topic {topic!r}") from error

    # --- the topic of checkpoints -------------------------------------------------------------------------------------
    def records(self) -> list[Record]:
        """Return the last record of each key in the topic of checkpoints, in their order.

        It waits for transactions that are open in the topic and end behind its present end: a checkpoint may be there
        and not be readable yet, because a transaction of another task began before it.
        """
        topic = self.options.checkpoints
        place = kafka.TopicPartition(topic, PARTITION, 0)  # faster than to ask for the first offset
        try:
            asked = self._admin().list_offsets(
                {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=kafka.IsolationLevel.READ_UNCOMMITTED,
                request_timeout=ANSWER_SECONDS_MAX,
            )
            end = asked[place].result(2 * ANSWER_SECONDS_MAX).offset
            consumer = kafka.Consumer(self.settings(for_progress(self.options)))
            try:
                consumer.assign([place])
                return self._read(consumer, end)
            finally:
                consumer.close()
        except kafka.KafkaException as error:
            raise self.failure(error.args[0], f"does not show topic {topic!r}") from error

    def _read(self, consumer: kafka.Consumer, end: int) -> list[Record]:
        found: dict[bytes, Record] = {}
        reached, waited = 0, 0
        while reached < end:
            first = consumer.poll(1)
            waited += first is None
            for message in [] if first is None else [first, *consumer.consume(READ_AT_ONCE, 0)]:
                error = message.error()
                if error is None:
                    record = Record(message.offset() or 0, message.key() or b"", message.value())
                    found.pop(record.key, None)
                    found[record.key] = record
                    reached = max(reached, record.offset + 1)
                elif error.code() == _Error._PARTITION_EOF:  # noqa: SLF001 - public in C
                    reached = max(reached, message.offset() or 0)
                elif not error.retriable() and error.code() != _Error._ALL_BROKERS_DOWN:  # noqa: SLF001 - public in C
                    raise kafka.KafkaException(error)
            if waited >= SETTLED_SECONDS_MAX:
                raise self.silent(
                    f"holds transactions open in topic {self.options.checkpoints!r}, or sends nothing of it,",
                    SETTLED_SECONDS_MAX,
                )
        return list(found.values())

    def _admin(self) -> AdminClient:
        if not self._admins:
            self._admins.append(AdminClient(self.settings(for_client(self.options))))
        return self._admins[0]
