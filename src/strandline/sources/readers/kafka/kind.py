"""The entry of Kafka among the readers: how one is opened, and which schemas it can return."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from strandline import extras
from strandline.algebra import messages
from strandline.algebra.schema import Schema
from strandline.connections.kafka import KafkaConnection
from strandline.errors import DefinitionError
from strandline.sources.kinds import ConnectionKind
from strandline.sources.reader import ReaderKind, Surroundings, side_by_side
from strandline.sources.readers.kafka.beginnings import Beginnings
from strandline.sources.readers.kafka.discovery import DISCOVERY
from strandline.sources.readers.kafka.options import KafkaOptions, RegistryConnection
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.readers.kafka.registry import Registry

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
