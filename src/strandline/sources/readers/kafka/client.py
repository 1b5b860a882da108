"""The Kafka client: a `Broker` over librdkafka.

It has two consumers, because an answer waits behind a fetch of the same connection: one looks and commits, the other
fetches.  Neither joins the group: the reader says what they read and commit.

No call keeps its caller longer than `CALL_SECONDS_MAX`: librdkafka's own limits end most of them, and a `Lane` gives
up waiting for the rest.

Source: https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient

from strandline.connections.kafka import ANSWER_SECONDS_MAX, SILENT, KafkaConnection, Settings, for_client
from strandline.errors import Unavailable
from strandline.sources.readers.kafka.broker import CALL_SECONDS_MAX, Ends, Lane, Message, OutOfRange, Span, Topic
from strandline.sources.readers.kafka.options import KafkaOptions, for_consumer
from strandline.store.secret import revealed

FETCH_MESSAGES: Final = 2_000
"""How many messages are taken over at once."""
FETCH_BYTES: Final = 4 << 20
"""After so many bytes no more are taken over; they wait in the client's queue, which is bounded too (64 MiB)."""
FETCH_STEP: Final = 16
"""How many are taken over before their bytes are counted."""
_POLLS_A_SECOND: Final = 100
_INTERNAL: Final = "__"
"""What the names of Kafka's own topics begin with."""
_BEGINNING, _END = -2, -1  # as Kafka names them where it is asked for the offset of a time
_NO_TOPIC: Final = frozenset({kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 - public in C
_GONE: Final = frozenset({kafka.KafkaError.OFFSET_OUT_OF_RANGE, kafka.KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001 - public in C
_EVENT_END: Final = kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - public in C


class KafkaBroker:
    """See `Broker`.  Connects when it is first asked."""

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        self._group = group
        self._name = f"Kafka at {options.servers}"
        self._asking, self._fetching = Lane(self._name), Lane(self._name)
        self._asker: kafka.Consumer | None = None
        self._fetcher: kafka.Consumer | None = None
        self._admin: AdminClient | None = None
        self._answers = 0  # to commits, since the last one was sent
        self._told = ""  # what librdkafka said last went wrong
        self._closed = False

    async def look(self) -> Topic | None:
        """See `Broker.look`."""
        return await self._asking.run(self._look)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """See `Broker.commit`."""
        await self._asking.run(lambda: self._commit(offsets))

    async def fetch(self, spans: Mapping[int, Span]) -> AsyncGenerator[Sequence[Message], None]:
        """See `Broker.fetch`."""
        left = {partition: span for partition, span in spans.items() if span.lower < span.upper}
        if not left:
            return
        await self._fetching.run(lambda: self._assign(left))
        try:
            while left:
                found = await self._fetching.run(lambda: self._take(left))
                if found:
                    yield found
        finally:
            with suppress(Unavailable):
                await self._fetching.run(self._unassign)

    async def close(self) -> None:
        """See `Broker.close`."""
        self._closed = True
        for lane, consumer in ((self._asking, self._asker), (self._fetching, self._fetcher)):
            if consumer is not None:
                with suppress(Unavailable):
                    await lane.run(consumer.close)
        self._asker = self._fetcher = self._admin = None

    # --- in a thread --------------------------------------------------------------------------------------------------
    def _look(self) -> Topic | None:
        topic, asker = self._options.topic, self._open_asker()
        try:
            known = asker.list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic]
            if known.error is not None:
                raise kafka.KafkaException(known.error)
            lows, ends = (self._offsets(asker, list(known.partitions), at) for at in (_BEGINNING, _END))
            # Last, because an id that is there after the offsets were asked for was there when they were.
            found = self._open_admin().describe_topics(
                kafka.TopicCollection([topic]), request_timeout=ANSWER_SECONDS_MAX
            )[topic]
            described = found.result(CALL_SECONDS_MAX)
        except kafka.KafkaException as error:
            if _code(error) in _NO_TOPIC:
                return None
            raise self._unavailable(asker, error) from error
        self._told = ""  # it was about an earlier call
        return Topic(str(described.topic_id), {p: Ends(lows[p], ends[p]) for p in lows})

    def _offsets(self, asker: kafka.Consumer, partitions: Sequence[int], at: int) -> dict[int, int]:
        asked = [kafka.TopicPartition(self._options.topic, partition, at) for partition in partitions]
        found = {}
        for each in asker.offsets_for_times(asked, timeout=ANSWER_SECONDS_MAX):
            if each.error is not None:
                raise kafka.KafkaException(each.error)
            found[each.partition] = each.offset
        return found

    def _commit(self, offsets: Mapping[int, int]) -> None:
        """Commit and wait for the answer by polling: a call that waits by itself can do so for as long as it likes."""
        wanted = [kafka.TopicPartition(self._options.topic, p, offset) for p, offset in sorted(offsets.items())]
        asker = self._open_asker()
        self._answers = 0
        try:
            asker.commit(offsets=wanted, asynchronous=True)
            for _ in range(ANSWER_SECONDS_MAX * _POLLS_A_SECOND):
                asker.poll(1 / _POLLS_A_SECOND)
                if self._answers:
                    break
            else:
                raise Unavailable(f"{self._name} has not confirmed a commit for {ANSWER_SECONDS_MAX} s{self._why()}")
        except kafka.KafkaException as error:
            raise self._unavailable(asker, error, f"does not commit the offsets of group {self._group!r}") from error

    def _committed(self, error: Any, partitions: Sequence[Any]) -> None:
        """Take note of the answer to a commit.  What it raises is raised by the poll that it came with."""
        self._answers += 1
        for failed in (error, *(each.error for each in partitions)):
            if failed is not None:
                raise kafka.KafkaException(failed)

    def _assign(self, spans: Mapping[int, Span]) -> None:
        if self._fetcher is None:
            self._fetcher = self._consumer()
        topic = self._options.topic
        self._fetcher.assign([kafka.TopicPartition(topic, p, span.lower) for p, span in sorted(spans.items())])

    def _unassign(self) -> None:
        if self._fetcher is not None and not self._closed:
            self._fetcher.unassign()

    def _take(self, left: dict[int, Span]) -> list[Message]:
        """Return messages of the spans ``left``, which lose what is complete."""
        assert self._fetcher is not None, "assigned before"
        first = self._fetcher.poll(ANSWER_SECONDS_MAX)
        if first is None:
            raise Unavailable(f"{self._name} has sent nothing for {ANSWER_SECONDS_MAX} s{self._why()}")
        found, size, some = list[Message](), 0, [first]
        while some:
            for message in some:
                if (taken := self._wanted(message, left)) is not None:
                    found.append(taken)
                    size += taken.size
            full = not left or len(found) >= FETCH_MESSAGES or size >= FETCH_BYTES
            some = [] if full else self._fetcher.consume(FETCH_STEP, 0)
        return found

    def _wanted(self, message: Any, left: dict[int, Span]) -> Message | None:
        """Return what was polled if it is a message of the spans ``left``, which lose it."""
        assert self._fetcher is not None, "it was polled"
        if (error := message.error()) is not None and error.code() != _EVENT_END:
            if error.code() in _GONE:
                raise OutOfRange(str(error))
            if error.retriable() or error.code() == kafka.KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - public in C
                return None
            raise self._unavailable(self._fetcher, kafka.KafkaException(error))
        at, ended = _place(message), error is not None
        span = left.get(at.partition)
        if span is None or at.offset < span.lower:
            return None  # it was fetched ahead, behind what was asked for; or it is of an earlier call
        if ended and at.offset < span.upper:
            raise OutOfRange(f"partition {at.partition} ends at {at.offset}")
        within = not ended and at.offset < span.upper
        if within:
            left[at.partition] = Span(at.offset + 1, span.upper)
        if at.offset >= span.upper - (not ended):
            del left[at.partition]
            self._fetcher.incremental_unassign([kafka.TopicPartition(self._options.topic, at.partition)])
        return _message(message, at) if within else None

    def _open_asker(self) -> kafka.Consumer:
        if self._asker is None:
            self._asker = self._consumer()
        return self._asker

    def _open_admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._settings(for_client(self._options)))
        return self._admin

    def _consumer(self) -> kafka.Consumer:
        settings = self._settings(for_consumer(self._options, self._group))
        return kafka.Consumer({**settings, "on_commit": self._committed})

    def _settings(self, given: Settings) -> dict[str, Any]:
        if self._closed:
            raise Unavailable("this reader is closed")
        return {**revealed(given), "logger": SILENT, "error_cb": self._hear}

    def _hear(self, error: Any) -> None:
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN or not self._told:  # noqa: SLF001 - public in C
            self._told = error.str()

    def _why(self) -> str:
        return f": {self._told}" if self._told else ""

    def _unavailable(self, client: kafka.Consumer, error: kafka.KafkaException, what: str = "") -> Unavailable:
        with suppress(kafka.KafkaException, RuntimeError):
            client.poll(0)  # lets librdkafka say why
        said = error.args[0].str()
        why = self._told if self._told and self._told != said else ""
        self._told = ""
        return Unavailable(f"{self._name} {what or 'does not answer'}: {said}{f' ({why})' if why else ''}")


async def topics(at: KafkaConnection) -> list[str]:
    """Return the names of a cluster's topics, but for its own.  Raises `Unavailable` if it does not answer."""

    def ask() -> list[str]:
        settings: dict[str, Any] = {**revealed(for_client(at)), "logger": SILENT, "error_cb": said.append}
        client = AdminClient(settings)
        try:
            there = client.list_topics(timeout=ANSWER_SECONDS_MAX).topics
        except kafka.KafkaException as error:
            why = f" ({said[0].str()})" if said else ""
            raise Unavailable(f"{name} does not answer: {error.args[0].str()}{why}") from error
        return sorted(each for each in there if not each.startswith(_INTERNAL))

    name, said = f"Kafka at {at.servers}", list[Any]()
    return await Lane(name).run(ask)


class _Place(NamedTuple):
    partition: int
    offset: int


def _place(message: Any) -> _Place:
    return _Place(message.partition(), message.offset())


def _message(message: Any, at: _Place) -> Message:
    kind, at_ms = message.timestamp()
    known = at_ms if kind != kafka.TIMESTAMP_NOT_AVAILABLE else None
    return Message(*at, known, message.key(), message.value(), tuple(message.headers() or ()))


def _code(error: kafka.KafkaException) -> int:
    return int(error.args[0].code())
