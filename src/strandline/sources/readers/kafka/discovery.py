"""What there is to read in a cluster: its topics, with columns from the registry or from a few of their messages.

A topic whose value has a schema in the registry has the schema's columns; one whose newest messages are JSON objects
has their fields; of any other one the text of a message is its column, or its bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from strandline.algebra.messages import MessageEncoding
from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError, SourceError
from strandline.options import TEXT, option
from strandline.sources import sampled
from strandline.sources.kinds import Discovered, Discovery
from strandline.sources.readers.kafka.broker import OutOfRange, Span, Topic
from strandline.sources.readers.kafka.client import KafkaBroker, topics
from strandline.sources.readers.kafka.options import KafkaConnection, KafkaOptions, RegistryConnection
from strandline.sources.readers.kafka.registry import Registry

SAMPLED_MAX: Final = 20
"""So many of a partition's newest messages are looked at."""
_GROUP: Final = "strandline-discover"
"""Nothing is committed, and librdkafka wants the name of a group."""
_PLAIN: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "time-millis": "string",
    "time-micros": "string",
    "uuid": "string",
    "enum": "string",
    "fixed": "binary",
}
"""Avro's types that are one column, by logical type if there is one."""


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
    return [options.topic] if options.topic is not None else await topics(options)


async def _topic(options: Looked, name: str, registry: Registry | None) -> Discovered:
    given = {each.name: getattr(options, each.name) for each in fields(Looked) if each.name != "topic"}
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
    declared = None if schema is None else of_avro(schema)
    if declared is not None:
        return Discovered(name, declared, {"topic": name, "format": MessageEncoding.AVRO.value}, note)
    columns, encoding = await asyncio.to_thread(_columns, values)
    return Discovered(name, columns, {"topic": name, "format": encoding.value}, note)


async def _sample(broker: KafkaBroker, topic: Topic) -> list[bytes]:
    spans = {p: Span(max(e.low, e.stable - SAMPLED_MAX), e.stable) for p, e in topic.partitions.items()}
    try:
        return [each.value async for some in broker.fetch(spans) for each in some if each.value is not None]
    except OutOfRange:
        return []  # they were deleted meanwhile


def _columns(values: Sequence[bytes]) -> tuple[Schema, MessageEncoding]:
    """Return the columns that the values show, and how they are encoded."""
    try:
        if values and all(isinstance(json.loads(value), dict) for value in values):
            return sampled.of_json(values), MessageEncoding.JSON
    except ValueError:
        pass
    try:
        for value in values:
            value.decode()
    except UnicodeDecodeError:
        return Schema((Column("value", "binary"),)), MessageEncoding.BYTES
    return Schema((Column("value", "string"),)), MessageEncoding.TEXT


def of_avro(text: str) -> Schema | None:
    """Return the columns of an Avro record; without fields that are no plain values; None: it is no record.

    >>> day = {"type": "int", "logicalType": "date"}
    >>> fields = [{"name": "id", "type": "long"}, {"name": "day", "type": ["null", day]}]
    >>> of_avro(json.dumps({"type": "record", "name": "r", "fields": fields}))
    Schema(columns=(Column(name='id', type='bigint'), Column(name='day', type='date')))
    """
    try:
        record = json.loads(text)
    except ValueError:
        return None  # a schema of another kind
    if not isinstance(record, dict) or record.get("type") != "record":
        return None
    columns = [(str(each["name"]), _kind(each["type"])) for each in record.get("fields", ())]
    return Schema(tuple(Column(name, kind) for name, kind in columns if kind is not None))


def _kind(declared: Any) -> str | None:
    match declared:
        case str():
            return _PLAIN.get(declared)
        case list():
            rest = [each for each in declared if each != "null"]
            return _kind(rest[0]) if len(rest) == 1 else None
        case {"logicalType": "decimal", "precision": int(precision)}:
            return f"decimal({precision},{declared.get('scale', 0)})"
        case Mapping():
            return _PLAIN.get(declared.get("logicalType", ""), None) or _kind(declared.get("type"))
    return None


DISCOVERY: Final = Discovery(Looked, find)
