"""Message formats: plain data that readers of messages share with the engine, which decodes them.

A *raw message* is what a broker (or a push over HTTP) gives: bytes, a place, a timestamp.  `RAW` names the columns of
a table of them.  `MessageFormat` says how their bytes become the columns of a schema; `check` refuses, before anything
is stored, a format that cannot make rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from strandline.algebra import types
from strandline.algebra.schema import TIME, Schema
from strandline.errors import DefinitionError

RAW: Final[Mapping[str, str]] = {
    "topic": "string",
    "partition": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    TIME: "bigint",
}
"""The columns of raw messages and their types; ``headers`` may be left out.  ``__time``: of the row that it makes."""


FRAME_BYTES: Final = 5
SCHEMA_ID_MAX: Final = (1 << 31) - 1
"""Registries number schemas by positive integers of 32 bits with a sign, and have no answer for others."""
OFFSET_BITS: Final = 48
"""The bits of an order that hold the offset: a million messages a second fill them in nine years."""
PARTITIONS_MAX: Final = 1 << (63 - OFFSET_BITS)
"""The partitions that an order can tell apart: their numbers are below it, so that an order is a bigint."""


def order(partition: str, offset: int) -> int:
    """Return where a message stands among those of one key and one time (`algebra.keyed.ORDER`).

    A log orders the messages of one partition alone.  Messages of a key in two partitions, which a topic has where it
    got more partitions or where a producer chooses them, count by partition, so that the same message is the last one
    at each read.  It is the newer one where the number of partitions was multiplied: then a key stays or moves up.
    Timestamps cannot tell, because producers' clocks may go back within a partition.

    >>> order("0", 7) < order("0", 8) < order("1", 0) < order("10", 0), order("", 7)
    (True, 7)
    >>> order(str(PARTITIONS_MAX - 1), 7) < 1 << 63 <= order(str(PARTITIONS_MAX), 7)
    True
    """
    return ((int(partition) if partition else 0) << OFFSET_BITS) + offset


def framed_id(data: bytes) -> int | None:
    """Return the id of the schema that framed bytes name; None if they have no frame.

    >>> framed_id(bytes([0, 0, 0, 1, 2, 3])), framed_id(b"{}"), framed_id(b"")
    (258, None, None)
    >>> framed_id(bytes([0, 255, 255, 255, 255]))
    """
    if len(data) < FRAME_BYTES or data[0] != 0:
        return None
    number = int.from_bytes(data[1:FRAME_BYTES], "big")
    return number if number <= SCHEMA_ID_MAX else None


class MessageEncoding(Enum):
    """How the bytes of a message's value, or of its key, hold data."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    TEXT = "text"
    BYTES = "bytes"

    @property
    def single(self) -> bool:
        """Whether the bytes are one value, and not named ones."""
        return self in {MessageEncoding.TEXT, MessageEncoding.BYTES}

    @property
    def binary(self) -> bool:
        """Whether Python decodes it, against a schema that the format names."""
        return self in {MessageEncoding.AVRO, MessageEncoding.PROTOBUF}


class Shape(Enum):
    """What a message says: that there is a row, or what the row of a key is now."""

    PLAIN = "none"
    """The value is a row."""
    UPSERT = "upsert"
    """The value is the newest row of the key; a null value deletes it."""
    DEBEZIUM = "debezium"
    """The value has a row as it was before, as it is after, and what happened to it; null values say nothing new."""

    @property
    def keyed(self) -> bool:
        """Whether a row is the newest of its key."""
        return self is not Shape.PLAIN


class Metadata(Enum):
    """What a column can hold of a message besides its value."""

    KEY = "key"
    TIMESTAMP = "timestamp"
    PARTITION = "partition"
    OFFSET = "offset"
    HEADERS = "headers"
    TOPIC = "topic"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types that such a column can have, the usual one first; empty: those that the key's encoding can hold.

        >>> Metadata.PARTITION.kinds, Metadata.KEY.kinds
        (('int', 'bigint', 'string'), ())
        """
        return _KINDS[self]

    @property
    def usual(self) -> str:
        """The type of such a column where no other is declared."""
        return self.kinds[0] if self.kinds else "binary"


_KINDS: Final[Mapping[Metadata, tuple[str, ...]]] = {
    Metadata.KEY: (),
    Metadata.TIMESTAMP: ("timestamp",),
    Metadata.PARTITION: ("int", "bigint", "string"),
    Metadata.OFFSET: ("bigint",),
    Metadata.HEADERS: ("array<struct<key:string,value:binary>>",),
    Metadata.TOPIC: ("string",),
}


@dataclass(frozen=True, slots=True)
class Coding:
    """How some bytes become values: an encoding and what it needs to know.

    ``framed``: the bytes begin with Confluent's frame: a zero byte, the id of a schema (4 bytes, the highest first),
    and for Protobuf the position of the message's type in its file.
    """

    encoding: MessageEncoding
    framed: bool = False
    avro_schema: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How to decode messages into the rows of a schema.

    ``key``: the columns that the message's key holds (`Shape.UPSERT`) or that identify a row (`Shape.DEBEZIUM`, where
    they are taken from the key if there is a ``key_encoding``, else from the row itself).  ``included``: the columns
    that hold something else than the value, by name.  All other columns are the value's, by name (CSV: by position).

    ``schemas``: the writers' schemas of framed bytes, by id, as the registry has them.  ``avro_schema``: the writer's
    schema of Avro that is not framed; of framed Avro the reader's, if it is given.  ``descriptor``: a serialised
    ``FileDescriptorSet`` with its imports; ``message``: the full name of the value's type in it.

    ``delimiter`` and what follows are as in `formats.FileFormat`.

    >>> form = MessageFormat(MessageEncoding.JSON, Shape.UPSERT, ("id",), MessageEncoding.TEXT)
    >>> form.of_value.encoding.value, form.of_key and form.of_key.encoding.value
    ('json', 'text')
    """

    encoding: MessageEncoding
    shape: Shape = Shape.PLAIN
    key: tuple[str, ...] = ()
    key_encoding: MessageEncoding | None = None
    included: Mapping[str, Metadata] = field(default_factory=dict)
    framed: bool = False
    schemas: Mapping[int, str] = field(default_factory=dict)
    avro_schema: str | None = None
    descriptor: bytes | None = field(default=None, repr=False)
    message: str | None = None
    key_framed: bool = False
    key_avro_schema: str | None = None
    key_message: str | None = None
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    timestamp_format: str | None = None
    date_format: str | None = None

    @property
    def of_value(self) -> Coding:
        """How the value is decoded."""
        return Coding(self.encoding, self.framed, self.avro_schema, self.message)

    @property
    def of_key(self) -> Coding | None:
        """How the key is decoded; None if it is not."""
        if self.key_encoding is None:
            return None
        return Coding(self.key_encoding, self.key_framed, self.key_avro_schema, self.key_message)

    def held_by_key(self, schema: Schema) -> Schema:
        """Return the columns of ``schema`` that are decoded from the message's key, in its order."""
        if self.key_encoding is None or not self.shape.keyed:
            return Schema(())
        return Schema(tuple(column for column in schema if column.name in self.key))

    def held_by_value(self, schema: Schema) -> Schema:
        """Return the columns of ``schema`` that are decoded from the message's value, in its order."""
        elsewhere = {*self.included, *self.held_by_key(schema).names}
        return Schema(tuple(column for column in schema if column.name not in elsewhere))


class Concealed(Protocol):
    """A text that is not shown (`strandline.store.secret.Secret`)."""

    def reveal(self) -> str:
        """Return the text."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one partition with ``lower <= offset < upper``, whose rows have the time ``time``."""

    time: int
    partition: str
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """Ranges of a topic, no two of which overlap, and how Spark's connector reaches its brokers.

    ``options``: what that connector takes (``kafka.bootstrap.servers``, …), besides which offsets to read.

    >>> TopicRanges("t", (Range(7, "0", 3, 5), Range(8, "0", 5, 9)), {}).messages
    6
    """

    topic: str
    ranges: tuple[Range, ...]
    options: Mapping[str, str | Concealed]

    @property
    def messages(self) -> int:
        """How many messages there may be: offsets may have gaps."""
        return sum(each.upper - each.lower for each in self.ranges)


def check(form: MessageFormat, schema: Schema) -> None:
    """Refuse a format that cannot make rows of ``schema``.

    Raises:
        DefinitionError: it names the column or the option, and what it could be.
    """
    kinds = dict(types.columns(schema))
    for name, metadata in form.included.items():
        _check_included(name, metadata, kinds, form)
    _check_key(form, schema)
    value, key = form.held_by_value(schema), form.held_by_key(schema)
    if not value.columns and form.shape is Shape.PLAIN and form.encoding.single and not form.included:
        raise DefinitionError("no column is left for the value of a message")
    _check_held("value", form.of_value, value, form)
    if (coding := form.of_key) is not None and key.columns:
        _check_held("key", coding, key, form)
    if form.shape is Shape.DEBEZIUM and form.encoding not in _NESTED:
        raise DefinitionError(f"format {form.encoding.value} has no before and after; envelope debezium needs json")


_NESTED: Final = frozenset({MessageEncoding.JSON, MessageEncoding.AVRO, MessageEncoding.PROTOBUF})


def _check_included(name: str, metadata: Metadata, kinds: Mapping[str, types.Type], form: MessageFormat) -> None:
    kind = kinds.get(name)
    if kind is None:
        raise DefinitionError(f"include_{metadata.value}: there is no column {name!r}")
    if name in form.key:
        raise DefinitionError(f"column {name!r} is part of the key, and cannot be the message's {metadata.value} too")
    if metadata.kinds and kind not in [types.parse(name, text) for text in metadata.kinds]:
        raise DefinitionError(f"column {name!r}: the message's {metadata.value} is {' or '.join(metadata.kinds)}")


def _check_key(form: MessageFormat, schema: Schema) -> None:
    if form.shape.keyed and not form.key:
        raise DefinitionError(f"envelope {form.shape.value} needs a key: name its columns by KEY (…)")
    for name in form.key:
        if name not in schema.names:
            raise DefinitionError(f"key: there is no column {name!r}; columns are {', '.join(schema.names)}")
    if form.shape is Shape.UPSERT and form.key_encoding is None:
        raise DefinitionError("envelope upsert needs the format of the message's key: KEY FORMAT …")


def _check_held(what: str, coding: Coding, held: Schema, form: MessageFormat) -> None:
    """Refuse columns that an encoding cannot hold, and an encoding that lacks what it needs."""
    kinds = types.columns(held)
    match coding.encoding:
        case MessageEncoding.TEXT | MessageEncoding.BYTES:
            if len(kinds) > 1:
                raise DefinitionError(
                    f"format {coding.encoding.value}: a {what} is one column; there are {', '.join(held.names)}"
                )
            allowed = types.Atom("string" if coding.encoding is MessageEncoding.TEXT else "binary")
            for name, kind in kinds:
                if what == "value" and kind != allowed:
                    raise DefinitionError(f"column {name!r}: format {coding.encoding.value} gives {allowed.name}")
                if not isinstance(kind, types.Atom | types.Decimal):
                    raise DefinitionError(f"column {name!r}: format {coding.encoding.value} cannot hold {kind}")
        case MessageEncoding.CSV:
            for name, kind in kinds:
                if not isinstance(kind, types.Atom | types.Decimal):
                    raise DefinitionError(f"column {name!r}: a CSV field cannot hold {kind}")
        case MessageEncoding.AVRO if not coding.framed and coding.avro_schema is None:
            raise DefinitionError(f"format avro needs the schema of the {what}, or a registry")
        case MessageEncoding.PROTOBUF if form.descriptor is None or coding.message is None:
            raise DefinitionError(f"format protobuf needs a descriptor set and the name of the {what}'s message type")
        case _:
            pass
