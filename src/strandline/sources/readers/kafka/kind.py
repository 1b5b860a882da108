"""Kafka as a reader: how it is opened, which schemas it can return, and which topics a cluster has.

Discovery proposes columns for each topic.  A topic whose value has a schema in the registry gets the schema's columns;
one whose newest messages are JSON objects gets their fields; any other topic gets one column for the message's text, or
its bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from strandline import extras
from strandline.algebra import messages
from strandline.algebra.messages import MessageEncoding
from strandline.algebra.schema import Schema
from strandline.connections.kafka import KafkaConnection
from strandline.errors import DefinitionError, SourceError
from strandline.extras import KAFKA
from strandline.options import TEXT, option
from strandline.sources.kinds import ConnectionKind, Discovered, Discovery, discovered
from strandline.sources.reader import ReaderKind, Surroundings, side_by_side
from strandline.sources.readers import sampled
from strandline.sources.readers.avro_columns import columns_of
from strandline.sources.readers.kafka.broker import Beginnings, Broker, OutOfRange, Span, Topic
from strandline.sources.readers.kafka.options import KafkaOptions, RegistryConnection
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.readers.kafka.registry import Registry

SAMPLED_MAX: Final = 20
"""So many of a partition's newest messages are looked at."""
_GROUP: Final = "strandline-discover"
"""Nothing is committed, and librdkafka wants the name of a group."""


@dataclass(frozen=True, kw_only=True)
class Looked(KafkaConnection, RegistryConnection):
    """Where to look."""

    topic: str | None = option(TEXT, "The topic; without it, all of them.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        KafkaConnection.__post_init__(self)
        RegistryConnection.__post_init__(self)


async def find(options: Looked) -> Sequence[Discovered]:
    """Return the topics there are.

    Raises `SourceError` if the topic that is named is not there, `Unavailable` if the cluster does not answer.
    """
    registry = None if options.registry_url is None else Registry(options)
    found = [await _topic(options, name, registry) for name in await _names(options)]
    if not found:
        raise DefinitionError(f"there is no topic at {options.servers}")
    return found


async def _names(options: Looked) -> Sequence[str]:
    from strandline.sources.readers.kafka.client import topics

    return [options.topic] if options.topic is not None else await topics(options)


async def _topic(options: Looked, name: str, registry: Registry | None) -> Discovered:
    given = {each.name: getattr(options, each.name) for each in fields(Looked) if each.name != "topic"}
    from strandline.sources.readers.kafka.client import KafkaBroker

    broker = KafkaBroker(KafkaOptions(topic=name, **given), _GROUP)
    try:
        topic = await broker.look()
        if topic is None:
            raise SourceError(f"topic {name!r} does not exist at {options.servers}")
        values = await _sample(broker, topic)
    finally:
        await broker.close()
    many = sum(ends.stable - ends.low for ends in topic.partitions.values())
    note = f"{len(topic.partitions)} partitions, about {many} messages"
    schema = None if registry is None else await registry.newest(f"{name}-value")
    declared = None if schema is None else columns_of(schema)
    if declared is not None:
        return discovered(name, declared, {"topic": name, "format": MessageEncoding.AVRO.value}, [note], exact=True)
    columns, encoding = await asyncio.to_thread(_columns, values)
    said = {"topic": name, "format": encoding.value}
    if encoding is MessageEncoding.JSON and registry is not None:
        said["framed"] = "false"  # the values were seen: no id of a schema is before them
    return discovered(name, columns, said, [note], exact=True)


async def _sample(broker: Broker, topic: Topic) -> list[bytes]:
    spans = {p: Span(max(e.low, e.stable - SAMPLED_MAX), e.stable) for p, e in topic.partitions.items()}
    try:
        return [each.value async for some in broker.fetch(spans) for each in some if each.value is not None]
    except OutOfRange:
        return []  # they were deleted meanwhile


def _columns(values: Sequence[bytes]) -> tuple[Sequence[tuple[str, str | None]], MessageEncoding]:
    """Return the columns that the values show, and how they are encoded."""
    try:
        if values and all(isinstance(json.loads(value), dict) for value in values):
            return sampled.of_json(values).columns, MessageEncoding.JSON
    except ValueError:
        pass
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return [("value", "binary")], MessageEncoding.BYTES
    return [("value", "string")], MessageEncoding.TEXT


DISCOVERY: Final = Discovery(Looked, find, (KAFKA,))


GROUP: Final = "strandline-"
"""What the name of a source's own consumer group begins with; the rest is the id of its record shard."""


async def _open(options: KafkaOptions, given: Surroundings) -> KafkaReader:
    from strandline.sources.readers.kafka.client import KafkaBroker

    beginnings = await Beginnings.open(await given.progress(), given.epoch)
    broker = KafkaBroker(options, options.group or GROUP + beginnings.shard)
    registry = None if options.registry_url is None else Registry(options)
    form = replace(options.decoding, descriptor=options.descriptor_set())
    return KafkaReader(
        given.clock,
        broker,
        beginnings,
        registry,
        given.engine,
        given.messages,
        given.schema,
        options,
        form,
        evolving="" in given.evolving,
        gained=given.gained,
        name=given.name,
    )


def _check(options: KafkaOptions, schema: Schema) -> None:
    try:
        form = replace(options.decoding, descriptor=options.descriptor_set())
    except OSError as error:
        raise DefinitionError(str(error)) from None
    messages.check(form, schema)


KIND: Final = ReaderKind(
    "kafka",
    KafkaOptions,
    _open,
    _check,
    connections={
        "connection": ConnectionKind("kafka", KafkaConnection),
        "registry_connection": ConnectionKind("registry", RegistryConnection),
    },
    discovery=DISCOVERY,
    shared=side_by_side,
    needs=lambda _: (extras.KAFKA,),
    counts="messages",
)
