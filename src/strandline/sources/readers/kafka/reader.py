"""The Kafka reader: one topic, whose partitions are the source's partitions and whose offsets are its offsets.

*How far it could be read* is the last stable offset of each partition: uncommitted messages are not there yet, aborted
ones never are.  Partitions that come later are read from offset 0.

*The topic is always the same one.*  Its id and where each partition began are written down (`broker.py`) before
anything is bound.  A topic that was created again under the same name is a `SourceError`.  So is a partition whose
first remaining offset lies beyond what must be read, or that ends before the offset that was reached: nothing is
skipped.

*Reading* is by offsets.  This process fetches few messages of few bytes; Spark's own connector reads others, if Spark
has it.  Else this process decodes some at a time and puts their rows aside, so that no step holds more than
`HELD_BYTES_MAX` of messages, plus those that have just come.  A compacted topic may lose messages before they are read;
the newest message of each key is always there.

*Committed offsets* are those of the consumer group, for tools that show its lag or delete messages before them.  They
are never read back: the durable state here says where reading continues.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.messages import (
    FRAME_BYTES,
    PARTITIONS_MAX,
    MessageEncoding,
    MessageFormat,
    Range,
    TopicRanges,
    framed_id,
)
from strandline.algebra.schema import TIME, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, ELSEWHERE
from strandline.sources.reader import Keyed, MessageDecoder, Plain, Records
from strandline.sources.readers.kafka.broker import (
    CALL_SECONDS_MAX,
    Beginnings,
    Broker,
    Ends,
    Message,
    OutOfRange,
    Span,
    Topic,
)
from strandline.sources.readers.kafka.options import KafkaOptions, Start, for_spark
from strandline.sources.readers.kafka.registry import JsonFields, Registry, in_schemas
from strandline.sources.readers.new_columns import Gained, unsaid
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import Clock

WAIT_MS: Final = 60_000
"""How long an id is waited for.  A source that could not ask for so long begins a new go."""
WAITS_MS_MAX: Final = 3 * WAIT_MS
"""How long a source waits in one go, whatever ids come meanwhile."""
KEPT_MS: Final = 10 * WAIT_MS
"""How long after an id was last missed it is forgotten: a schema may have got it since."""


class _Missed(NamedTuple):
    first: int
    last: int


class _Go(NamedTuple):
    place: Offsets
    since: int
    last: int  # when it was last waited


class AwaitedSchemas:
    """The ids that one source has missed.

    They are the ids of schemas that messages name and the registry does not have: it may only be behind.  A registry is
    replicated, and a producer may be quicker than the replica that is asked.  So an id is awaited for a minute after it
    was first missed.  Only then is it taken for wrong, which makes its messages errors for ever.

    Garbage looks like ids too, and new garbage may come all the time.  So a source waits only for a bounded time in one
    *go*: at one place of its topic, and without a pause in which it could not ask.

    Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html (wire
    format).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed: dict[int, _Missed] = {}
        self._go: _Go | None = None

    def refuse(self, missing: Collection[int], place: Offsets) -> None:
        """Raise `Unavailable` if some of ``missing`` may still come; all others, from now on, will not.

        ``place``: from where on messages are read; it moves when some got through.
        """
        now = self._clock.now_ms()
        self._note(missing, now)
        fresh = sorted(each for each in missing if now - self._missed[each].first < WAIT_MS)
        if not fresh:
            return
        go = self._go
        if go is None or go.place != place or now - go.last >= WAIT_MS:
            go = _Go(place, now, now)
        if now - go.since < WAITS_MS_MAX:
            self._go = _Go(place, min(now, go.since), now)
            raise Unavailable(
                f"the schema registry does not have {', '.join(f'the schema {each}' for each in fresh)} yet, which "
                "messages name: it is asked again for a minute, then these messages become errors; register "
                "schemas before messages name them"
            )
        self._go = None
        self._missed |= {each: _Missed(now - WAIT_MS, now) for each in fresh}

    def _note(self, missing: Collection[int], now: int) -> None:
        """Take note of what is missed now, and forget what was missed long ago.  The clock may have been set back."""
        known = {
            each: _Missed(min(now, at.first), min(now, at.last))
            for each, at in self._missed.items()
            if now - at.last < KEPT_MS
        }
        self._missed = known | {each: _Missed(known[each].first if each in known else now, now) for each in missing}


_ARROW: Final = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.string()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    (TIME, pa.int64()),
])  # fmt: skip
MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, which a timestamp is in.  A producer that counts micro- or nanoseconds writes others."""


class Ranges:
    """Ranges of one topic, by partition and offset."""

    def __init__(self, topic: str, ranges: Sequence[Range]) -> None:
        self._topic = topic
        self._by_partition: dict[int, list[Range]] = defaultdict(list)
        for each in sorted(ranges, key=lambda each: each.lower):
            self._by_partition[int(each.partition)].append(each)

    @property
    def spans(self) -> dict[int, Span]:
        """What has to be fetched of each partition: from the first range to the last."""
        return {p: Span(these[0].lower, these[-1].upper) for p, these in sorted(self._by_partition.items())}

    def table(self, messages: Iterable[Message] = ()) -> pa.Table:
        """Return those of the messages that lie in a range."""
        columns: list[list[object]] = [[] for _ in _ARROW]
        topic, partitions = self._topic, {p: str(p) for p in self._by_partition}
        for partition, offset, at_ms, key, value, headers in messages:
            time = self._time_of(partition, offset)
            if time is None:
                continue
            at_us = None if at_ms is None or not MS_MIN <= at_ms <= MS_MAX else at_ms * 1000
            named = [{"key": name, "value": data} for name, data in headers]
            row = (topic, partitions[partition], offset, at_us, key, value, named, time)
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
        return pa.table([pa.array(column, each.type) for column, each in zip(columns, _ARROW, strict=True)], _ARROW)

    def _time_of(self, partition: int, offset: int) -> int | None:
        these = self._by_partition[partition]
        at = bisect_right(these, offset, key=lambda each: each.lower) - 1
        return these[at].time if at >= 0 and offset < these[at].upper else None


def schema_ids(data: pa.ChunkedArray) -> frozenset[int]:
    """Return the ids of schemas that these framed bytes begin with; what has no frame has none.

    >>> framed, beyond = bytes([0, 0, 0, 0, 7, 2]), bytes([0, 128, 0, 0, 0])
    >>> sorted(schema_ids(pa.chunked_array([[framed, None, b"x", b"{five}", beyond]])))
    [7]
    """
    heads = pc.unique(pc.binary_slice(data, 0, FRAME_BYTES)).to_pylist()
    return frozenset(number for head in heads if head is not None and (number := framed_id(head)) is not None)


HELD_BYTES_MAX: Final = 16 << 20
"""Bytes of a step's messages that are kept in memory."""
REGISTRY_SECONDS_MAX: Final = 1.0
"""How long a read waits for the schema registry; then the next probe asks it, for which nothing else waits."""
SAMPLED_MAX: Final = 20
"""In so many of the messages that were read last a source looks for fields that it does not take."""
_NO_IDS: Final[frozenset[int]] = frozenset()
NO_TOPIC: Final = Problem(
    "topic-absent",
    "topic {topic!r} does not exist at {servers}",
    Stopped.SOURCE,
    (Way("create it"), ELSEWHERE),
)
OTHER_TOPIC: Final = Problem(
    "topic-made-anew",
    "topic {topic!r} is not the one that was read so far: that had the id {known}, and this one, made later, has {id}",
    Stopped.SOURCE,
    (ANEW,),
)
MANY: Final = Problem(
    "topic-too-wide",
    "topic {topic!r} has a partition {last}, and a source whose rows have keys can order messages of the partitions "
    "before {most} alone",
    Stopped.SOURCE,
    (Way("make a source of a topic with fewer partitions, or with envelope none"),),
)
FORGOTTEN: Final = Problem(
    "messages-forgotten",
    "topic {topic!r}, partition {partition}: messages from offset {begun} on have to be read, and the brokers have "
    "those from {low} on only; they were deleted before they were read (retention, or an operator deleted records)",
    Stopped.SOURCE,
    (ANEW,),
)
NO_CONNECTOR: Final = Problem(
    "kafka-connector-missed",
    "this process has read {messages} messages in one step, because Spark has no Kafka connector",
    Stopped.NOTHING,
    (Way("configure `kafka_jars` to let Spark read so much"),),
)
MORE_PARTITIONS: Final = Problem(
    "topic-has-more-partitions",
    "topic {topic!r} has got partitions since the source began: {partitions}; of the messages that a key has in two "
    "partitions at one tick the one in the higher partition counts",
    Stopped.NOTHING,
)
LOST: Final = Problem(
    "messages-lost",
    "topic {topic!r}, partition {partition}: messages before offset {end} were there, and now it ends at {stable}; the "
    "cluster has lost what it had announced",
    Stopped.SOURCE,
    (ANEW,),
)


class _Wanted(NamedTuple):
    """Schemas that messages need: those of ids, and perhaps all of the topic's subjects."""

    ids: frozenset[int]
    subjects: bool


class KafkaReader:
    """Reads one topic.  See `SourceReader`.

    If the source takes new columns, the messages of a step are looked at before any of them is durable: each JSON
    value, or the schemas that Avro values name.  Otherwise only some messages are looked at, for a notice.
    """

    bounded = True

    def __init__(
        self,
        clock: Clock,
        broker: Broker,
        beginnings: Beginnings,
        registry: Registry | None,
        engine: Staging,
        decoder: MessageDecoder,
        schema: Schema,
        options: KafkaOptions,
        form: MessageFormat,
        *,
        evolving: bool = False,
        gained: Gained = unsaid,
        name: str,
    ) -> None:
        """``name``: the source's, for what messages advise."""
        self._name = name
        self._broker = broker
        self._beginnings = beginnings
        self._registry = registry
        self._awaited = AwaitedSchemas(clock)
        self._engine = engine
        self._decoder = decoder
        self._schema = schema
        self._options = options
        self._form = form
        self._evolving = evolving
        self._gained = gained
        self._of_values: set[int] = set()  # the ids of Avro schemas that values name
        self._new: dict[str, Column] = {}  # columns that were seen, which the source lacks and does not take
        self._reached = NOTHING_READ  # by a probe, or before this process was
        self._unknown: _Wanted | None = None  # what the registry was asked in vain
        self._told: tuple[_Wanted, dict[int, str]] | None = None  # what it answered a probe, for the next read
        self._lost = ""  # what was said of messages that the cluster lost: what fills their offsets hides it
        self._committed = NOTHING_READ
        self._added: set[int] = set()  # partitions that the topic has got since this reader was opened
        self._lazy = False  # whether Spark reads after the last `read` has returned
        self._given = ExitStack()  # what holds the rows of the last read
        self._heavy: tuple[Slice, ...] = ()  # what was read last, if it was more than is kept in memory
        self._long = 0  # the most messages of a step that Spark's connector should have read

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return Keyed(self._form.key) if self._form.shape.keyed else Plain()

    async def snapshot(self, table: str) -> None:
        """See `SourceReader.snapshot`: a topic is read from where its partitions begin."""

    async def upstream_frontier(self) -> Offsets:
        """Return the last stable offsets of all partitions, and write down where those begin that are new.

        They never go back, unless the cluster loses messages, which ends what this reader reads: brokers give no end
        while a new leader knows less than the one before it (KIP-207).
        """
        self._refuse_lost()
        await self._ask_again()
        reached = self._reached  # before the brokers answer: another instance may commit what came after that
        topic = await self._look()
        self._refuse_many(topic)
        if self._beginnings.topic != topic.id or any(p not in self._beginnings for p in topic.partitions):
            await self._register(topic)
        for partition, ends in topic.partitions.items():
            begun = max(self._reached[str(partition)], self._beginnings[partition])
            self._refuse_forgotten(partition, begun, ends)
            self._refuse_missing(partition, reached[str(partition)], ends)
        stable = Offsets({str(partition): ends.stable for partition, ends in topic.partitions.items()})
        self._reached = self._reached.join(stable)
        return self._reached

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the messages of these slices: by this process if they are few, else by Spark."""
        self._refuse_lost()
        self._given.close()
        ranges, self._lazy, self._heavy = await self._ranges(slices), False, ()
        wanted, place, few = Ranges(self._options.topic, ranges), slices[0].lower, self._few(slices)
        if self._decoder.connector and not few:
            return await self._by_spark(wanted, ranges, place, locate=locate)
        held, ids = await self._held(wanted)
        if held is not None and not self._evolving and self._form.encoding is MessageEncoding.JSON:
            fields = JsonFields(self._schema, self._form)
            fields.see(held.column("value").slice(max(0, held.num_rows - SAMPLED_MAX)).to_pylist())
            self._took(fields.columns)
        if held is None:
            self._heavy = tuple(slices)
            if self._decoder.connector:
                return await self._by_spark(wanted, ranges, place, locate=locate)
        if held is None or not few:
            self._long = max(self._long, sum(each.upper - each.lower for each in ranges))
        form = await self._understood(ids, place)
        if held is None:
            return await self._by_portions(wanted, form, locate=locate)
        return await self._decoder.messages(held, self._schema, form, locate=locate)

    async def confirm(self) -> None:
        """See `ConfirmsReads`: a topic that is there now was there when Spark read it.

        What was deleted since was read before; had it not been, the connector would have failed.
        """
        if self._lazy:
            await self._look()

    async def commit(self, resume: Offsets) -> None:
        """Set the group's offsets to what is durable, if that is not what they are."""
        self._reached = self._reached.join(resume)
        wanted = self._committed.join(resume)
        if wanted == self._committed:
            return
        await self._broker.commit({int(p): offset for p, offset in wanted.entries if offset > self._committed[p]})
        self._committed = wanted

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether few messages are between these offsets, which were not too many bytes when they were read."""
        return self._few(slices) and tuple(slices) != self._heavy

    def _few(self, slices: Sequence[Slice]) -> bool:
        return sum(each.upper.messages_since(each.lower) for each in slices) <= self._options.small_messages_max

    def notices(self) -> tuple[str, ...]:
        """Say that Spark's connector was missed, if it was, and that keys may have moved to another partition."""
        found = []
        if self._long:  # it takes this process' time
            found.append(NO_CONNECTOR.said(messages=self._long))
        if self._added and self._form.shape.keyed:
            added = ", ".join(map(str, sorted(self._added)))
            found.append(MORE_PARTITIONS.said(topic=self._options.topic, partitions=added))
        return *found, *filter(None, [self._gained("", [*self._new.values()])])

    async def close(self) -> None:
        """See `SourceReader.close`."""
        await self._broker.close()
        self._given.close()

    # --- the topic ----------------------------------------------------------------------------------------------------
    async def _look(self) -> Topic:
        """Return the topic as it is now.  Raises `SourceError` if it is not there, or not the one that it was."""
        found = await self._broker.look()
        if found is None:
            raise SourceError(NO_TOPIC.said(topic=self._options.topic, servers=self._options.servers))
        if self._beginnings.topic not in {"", found.id}:
            about = {"topic": self._options.topic, "known": self._beginnings.topic, "id": found.id}
            raise SourceError(OTHER_TOPIC.said(**about, item=self._name))
        return found

    async def _register(self, topic: Topic) -> None:
        await self._beginnings.refresh()
        first, known = not self._beginnings.topic, {p for p in topic.partitions if p in self._beginnings}
        latest = self._options.start is Start.LATEST
        begins = {p: (ends.stable if latest else ends.low) if first else 0 for p, ends in topic.partitions.items()}
        await self._beginnings.register(topic.id, begins)
        self._added |= set() if first else begins.keys() - known
        if self._beginnings.topic != topic.id:
            raise Unavailable(f"topic {self._options.topic!r} was made anew just now; ask again")

    def _refuse_many(self, topic: Topic) -> None:
        if self._form.shape.keyed and (last := max(topic.partitions, default=0)) >= PARTITIONS_MAX:
            raise SourceError(MANY.said(topic=self._options.topic, last=last, most=PARTITIONS_MAX))

    def _refuse_forgotten(self, partition: int, begun: int, ends: Ends) -> None:
        if ends.low > begun:
            about = {"topic": self._options.topic, "partition": partition, "begun": begun, "low": ends.low}
            raise SourceError(FORGOTTEN.said(**about, item=self._name))

    def _refuse_missing(self, partition: int, end: int, ends: Ends) -> None:
        if ends.stable < end:
            about = {"topic": self._options.topic, "partition": partition, "end": end, "stable": ends.stable}
            self._lost = LOST.said(**about, item=self._name)
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost:
            raise SourceError(self._lost)

    # --- messages -----------------------------------------------------------------------------------------------------
    async def _ranges(self, slices: Sequence[Slice]) -> list[Range]:
        """Return what the slices say of each partition, from where it begins."""
        parts = [(each, p, end) for each in slices for p, end in each.upper.entries if end > each.lower[p]]
        if not self._beginnings.topic or any(int(p) not in self._beginnings for _, p, _ in parts):
            await self._beginnings.refresh()
        ranges = (Range(s.time, p, max(s.lower[p], self._beginnings[int(p)]), end) for s, p, end in parts)
        return [each for each in ranges if each.lower < each.upper]

    async def _held(self, wanted: Ranges) -> tuple[pa.Table | None, frozenset[int]]:
        """Return the raw messages of the ranges, or None if they are too many bytes; and the ids that they begin with.

        All ids are known before one is missed, so that they are waited for together.
        """
        tables, ids, size = [wanted.table()], _NO_IDS, 0
        async with aclosing(self._searched(wanted)) as arriving:
            async for fetched in arriving:
                ids |= self._ids(fetched)
                size += fetched.nbytes
                if size <= HELD_BYTES_MAX:
                    tables.append(fetched)
                    continue
                tables.clear()
                if self._decoder.connector or not (self._avro or self._every_value):
                    break
        return (pa.concat_tables(tables) if tables else None), ids

    async def _by_portions(self, wanted: Ranges, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the rows of the ranges, fetched again; those that came last are in memory, the others aside."""
        into = self._given.enter_context(self._engine.arrivals(self._schema, keyed=form.shape.keyed))
        async with aclosing(self._fetched(wanted)) as arriving:
            async for fetched in arriving:
                decoded = await self._decoder.messages(fetched, self._schema, form, locate=locate)
                await asyncio.to_thread(into.add, await self._engine.collect(decoded))
        return into.rows()

    async def _fetched(self, wanted: Ranges) -> AsyncGenerator[pa.Table, None]:
        """Yield the raw messages of the ranges, in bounded tables."""
        try:
            async with aclosing(self._broker.fetch(wanted.spans)) as arriving:
                async for messages in arriving:
                    yield wanted.table(messages)
        except (OutOfRange, Unavailable) as error:
            await self._check(wanted)  # which parts what is definite from what passes
            raise Unavailable(f"topic {self._options.topic!r} cannot be read to where it was seen: {error}") from error
        if wanted.spans:
            await self._look()  # after it: a topic that is there now was there when it was read

    async def _check(self, wanted: Ranges) -> None:
        """Raise `SourceError` if the topic is another one, or no longer has what is wanted."""
        topic = await self._look()
        for partition, span in wanted.spans.items():
            ends = topic.partitions.get(partition)
            if ends is None:  # no topic loses a partition: a broker that knows less than others has answered
                raise Unavailable(
                    f"topic {self._options.topic!r}: the broker that was asked does not list partition {partition} "
                    "yet; it is asked again"
                )
            self._refuse_forgotten(partition, span.lower, ends)
            self._refuse_missing(partition, span.upper, ends)

    async def _by_spark(self, wanted: Ranges, ranges: Sequence[Range], place: Offsets, *, locate: bool) -> Rows:
        await self._check(wanted)
        ids = _NO_IDS
        if self._every_value or (locate and self._avro):  # its schema may be none of its subject's
            async for fetched in self._searched(wanted):
                ids |= self._ids(fetched)
        form = await self._understood(ids, place, subjects=True)
        self._lazy = True
        topic = TopicRanges(self._options.topic, tuple(ranges), for_spark(self._options))
        return await self._decoder.ranges(topic, self._schema, form, locate=locate)

    @property
    def _avro(self) -> tuple[str, ...]:
        """The parts of a message that begin with the id of an Avro schema."""
        codings = {"value": self._form.of_value, "key": self._form.of_key}
        return tuple(
            part
            for part, coding in codings.items()
            if coding is not None and coding.framed and coding.encoding is MessageEncoding.AVRO
        )

    @property
    def _every_value(self) -> bool:
        """Whether each value may have a column that the source is to take."""
        return self._evolving and self._form.encoding is MessageEncoding.JSON

    async def _searched(self, wanted: Ranges) -> AsyncGenerator[pa.Table, None]:
        """Yield what `_fetched` does; behind the last table raise `ColumnsAdded` if values had columns to take."""
        fields = JsonFields(self._schema, self._form)
        async with aclosing(self._fetched(wanted)) as arriving:
            async for fetched in arriving:
                if self._every_value:
                    await asyncio.to_thread(fields.see, fetched.column("value").to_pylist())
                yield fetched
        self._took(fields.columns)

    def _took(self, columns: Sequence[Column]) -> None:
        """Raise `ColumnsAdded` if the source takes these new columns; else note them for a notice."""
        self._gained("", columns)
        self._new |= {column.name: column for column in columns if column.name not in self._new}

    def _ids(self, fetched: pa.Table) -> frozenset[int]:
        if "value" in self._avro:
            self._of_values |= schema_ids(fetched.column("value"))
        return _NO_IDS.union(*(schema_ids(fetched.column(part)) for part in self._avro))

    async def _understood(self, ids: frozenset[int], place: Offsets, *, subjects: bool = False) -> MessageFormat:
        """Return the format with the schemas of these ids, and those of the topic's subjects if asked for.

        Those that were needed before are there too: a format that stays as it is can be decoded by a prepared plan.
        Raises `Unavailable` while an id may still come.
        """
        if self._registry is not None and self._avro:
            schemas = await self._schemas(_Wanted(ids, subjects))
            self._awaited.refuse(ids - schemas.keys(), place)
            self._form = replace(self._form, schemas={**self._form.schemas, **schemas})
        if self._form.encoding is MessageEncoding.AVRO:
            written = [text for each, text in sorted(self._form.schemas.items()) if each in self._of_values]
            self._took(in_schemas(written, self._schema, self._form))
        return self._form

    async def _schemas(self, wanted: _Wanted) -> dict[int, str]:
        """Return what the registry has of ``wanted``, as it says now or said to the last probe."""
        told, self._told = self._told, None
        if told is not None and told[0] == wanted:
            return told[1]
        try:
            return await self._registered(wanted, REGISTRY_SECONDS_MAX)
        except Unavailable:
            self._unknown = wanted
            raise

    async def _ask_again(self) -> None:
        """Ask the registry what a read asked in vain: in a probe, which may take its time."""
        if self._unknown is not None:
            self._told = self._unknown, await self._registered(self._unknown, CALL_SECONDS_MAX)
            self._unknown = None

    async def _registered(self, wanted: _Wanted, seconds: float) -> dict[int, str]:
        assert self._registry is not None
        schemas = await self._registry.schemas(wanted.ids, seconds)
        for part in self._avro if wanted.subjects else ():
            found = await self._registry.of_subject(f"{self._options.topic}-{part}", seconds)
            self._of_values |= found.keys() if part == "value" else set()
            schemas |= found
        return schemas
