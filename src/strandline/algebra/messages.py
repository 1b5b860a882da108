"""Formats of messages and files, and the errors and keyed records that come of decoding them.

All of it is plain data: sources, which read messages and list files, share it with the engine, which decodes them.

A *raw message* is what a broker, or a push over HTTP, delivers: bytes, a place and a timestamp.  `RAW` names the
columns of a table of raw messages.  `MessageFormat` and `FileFormat` say how bytes become the columns of a schema.
`check` refuses a format that cannot make rows of the schema, before anything is stored.

A record that cannot be decoded becomes an error in the error half of its source; errors may cancel one another
(`cancelled`).  A source whose records are *keyed* says what each key has from a record on; see `ORDER`, `GONE` and
`KEPT`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from strandline.algebra import types
from strandline.algebra.schema import ERROR, TIME, Schema
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
    """Return where a message stands among those of one key and one time (`algebra.messages.ORDER`).

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

    ``delimiter`` and what follows are as in `FileFormat`.

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


NO_OBJECT: Final = "it is not a JSON object"
HALF_A_PAIR: Final = "it holds half of a surrogate pair, which is no character"
DIGITS_MAX: Final = 1_000
"""Spark's parser of JSON takes no longer numbers, and no deeper nesting: either could keep it busy for minutes."""
TOO_LONG: Final = f"it holds a number of more than {DIGITS_MAX} digits"
TOO_DEEP: Final = "it is nested too deep"
NAME_CHARS_MAX: Final = 50_000
"""That parser takes no longer names of fields, of columns or not, and has no setting for it."""
LONG_NAME: Final = f"it has a field whose name has more than {NAME_CHARS_MAX} characters"
# The error of an undecodable record is a JSON object ``{"file", "line", "reason", "raw"}`` (a reader may write plain
# text instead).  An undecodable record that upstream takes back is an error too: its reason begins with `TAKES_BACK`.
TAKES_BACK: Final = "it takes back a record that is not here: "
RAW_CHARS_MAX: Final = 4_096
"""How much of an undecodable record an error holds."""
VALUE_CHARS_MAX: Final = 100
"""How much of a value its reason shows."""


def of_record(file: str, record: int, reason: str, raw: str) -> str:
    """Return the error of a record of a file that has no lines: its number, from 1, takes the line's place."""
    told = {"file": file, "record": record, "reason": reason, "raw": raw[:RAW_CHARS_MAX]}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


class Told(NamedTuple):
    """What an error says besides where it stands: why, of which text, and whether it takes such a record back."""

    reason: str
    raw: str | None
    takes_back: bool


def parsed(error: str) -> Told:
    """Return what ``error`` says.

    >>> parsed('{"file":"b.csv","line":2,"reason":"it takes back a record that is not here: short","raw":"1"}')
    Told(reason='short', raw='1', takes_back=True)
    >>> parsed("no JSON")
    Told(reason='no JSON', raw=None, takes_back=False)
    """
    try:
        found = json.loads(error)
    except ValueError:
        found = None
    described = found if isinstance(found, dict) and isinstance(found.get("reason"), str) else {"reason": error}
    reason = str(described["reason"])
    return Told(reason.removeprefix(TAKES_BACK), described.get("raw"), reason.startswith(TAKES_BACK))


def cancelled(errors: Mapping[str, int]) -> dict[str, int]:
    """Return which of ``errors`` (how often each is there) cancel one another, and how often.

    An error and its withdrawal (`TAKES_BACK`) match if they agree in reason and raw text, wherever they stand.  They
    cancel in pairs.  So a record that came and was taken back leaves no error, and one that was taken back and never
    came stays an error.  Of several matching errors, those first in the order of their text are cancelled.

    >>> cancelled({"a": 2, "b": 1, TAKES_BACK + "a": 1})
    {'a': 1, 'it takes back a record that is not here: a': 1}
    """
    sides: dict[tuple[str, str | None], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for error in sorted(errors):
        reason, raw, takes_back = parsed(error)
        sides[reason, raw][takes_back].append(error)
    found: dict[str, int] = {}
    for both in sides.values():
        pairs = min(sum(errors[error] for error in side) for side in both)
        for side in both:
            left = pairs
            for error in side:
                taken = min(left, errors[error])
                left -= taken
                found |= {error: taken} if taken else {}
    return found


# A source whose records are *keyed* (upsert, Debezium, CDC without full images) returns them with the columns of its
# collection, ``__time``, ``__diff`` (always 1) and these:
#
# - `ORDER`, a bigint: the records of one key at one time count in this order.  Two records with the same order are one
#   record that came twice.
# - `GONE`, a boolean: true, the key has no row from here on, and all columns but those of the key are NULL; false, the
#   key has this row, or this error; NULL, the key of the record is unknown, and the record is an error of its own.
# - `KEPT`, an array of column names of the schema; the column may be missing: what upstream did not send because it is
#   unchanged.  NULL is none.
# - ``__error``, which may be missing: the record is an error.  If its key is known (`GONE` is false), the columns of
#   the key hold it, in a row of the error half too, and all other columns are NULL.
#
# At each time a key has one row, or one error, or nothing: what its last record says.  So a key whose value cannot be
# decoded loses its row, and the error stands in its place until the next record of the key.  An error without a key (a
# NULL key among them) stays until the operator dismisses it.  A record with `KEPT` whose key has no row is an error of
# the key, with `NOTHING_KEPT`, because no value is invented.
#
# Trap: the last record is the last by time and then by order, never by the order of rows in a frame.
#
# The naive truth: `strandline.sources.envelopes`.
ORDER: Final = "__order"
GONE: Final = "__gone"
KEPT: Final = "__kept"
RECORD: Final = (ORDER, GONE, KEPT, ERROR)
"""The columns of a record besides those of its collection, ``__time`` and ``__diff``; the last two may lack."""
KEY: Final = "key"
"""The name of the key in an error's JSON."""
NOTHING_KEPT: Final = "it leaves out columns that stay as they were, and its key has no row"


def with_key(error: str, key: Mapping[str, str | None]) -> str:
    """Return ``error`` as the error of a known key, whose values are given as texts.

    An error is a JSON object without a key, or a plain text, which becomes the reason.

    In the error half of a collection an error of a known key begins with ``{"key":{…},``.  The engine adds that, with
    texts of its own: two keys have the same texts iff they are equal.  So decoders neither write it nor agree on how.

    >>> with_key('{"place":"t[0]@7","reason":"no JSON"}', {"id": "1"})
    '{"key":{"id":"1"},"place":"t[0]@7","reason":"no JSON"}'
    >>> with_key("somewhere", {"id": "1", "part": None})
    '{"key":{"id":"1","part":null},"reason":"somewhere"}'
    """
    body = error if error.startswith("{") else json.dumps({"reason": error}, separators=(",", ":"), ensure_ascii=False)
    written = json.dumps(dict(key), separators=(",", ":"), ensure_ascii=False)
    return f'{{"{KEY}":{written},{body[1:]}'


def key_of(error: str) -> dict[str, str | None] | None:
    """Return the key, as texts, of an error that has a known one.

    >>> key_of('{"key":{"id":"1"},"reason":"no JSON"}'), key_of('{"reason":"no key"}'), key_of("somewhere")
    ({'id': '1'}, None, None)
    """
    try:
        found = json.loads(error)
    except ValueError:
        return None
    key = found.get(KEY) if isinstance(found, dict) else None
    return key if isinstance(key, dict) else None


def check_key(schema: Schema, key: Sequence[str]) -> None:
    """Raise `DefinitionError` if records of ``schema`` cannot be told apart by the columns ``key``.

    >>> from strandline.algebra.schema import Column
    >>> check_key(Schema((Column("id", "int"), Column("tags", "array<string>"))), ["tags"])
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: key column 'tags' has type array<string>; a key has columns of plain types
    """
    if not key:
        raise DefinitionError("a source of keyed records needs a key: name its columns")
    columns = {column.name: column.type for column in schema}
    for name in key:
        if name not in columns:
            raise DefinitionError(f"key column {name!r} is not a column; these are: {', '.join(schema.names)}")
        if isinstance(types.parse(name, columns[name]), types.Array | types.Struct):
            raise DefinitionError(f"key column {name!r} has type {columns[name]}; a key has columns of plain types")
    if len(set(key)) < len(key):
        raise DefinitionError(f"a column occurs twice in the key {', '.join(key)}")


class Encoding(Enum):
    """The encoding of a file."""

    AVRO = "avro"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"

    @property
    def text(self) -> bool:
        """Whether the file is text."""
        return self in {Encoding.CSV, Encoding.JSON}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to decode a file.  All fields except ``encoding`` and ``later`` apply to text only.

    ``header``: the first line of a CSV file names its columns, which are then found by name, without regard to case,
    in any order; columns that are not declared are skipped, and a file that lacks a declared column is one error.
    Without a header, fields are matched by position and there must be as many as columns.  ``null`` is the one token
    (besides the empty field) that stands for NULL. ``escape`` equal to ``quote`` means that a quote inside quotes is
    doubled (RFC 4180).  ``multiline``: a record may span lines; ``ends``: what ends one of CSV then, where the reader
    would take another line end for it; empty: it sees for itself.  ``later``: declared columns that a file may lack,
    since files came before them: its records have NULL there.  JSON names are matched exactly, and a missing name is
    NULL, as in Spark.
    """

    encoding: Encoding
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    timestamp_format: str | None = None
    date_format: str | None = None
    multiline: bool = False
    ends: str = ""
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatedFile:
    """A file whose records all have the time ``time``: its path, its name for messages, its size in bytes.

    ``withdrawn``: its records are withdrawn, each once (diff −1); a record that cannot be decoded is still an error,
    whose reason begins with `TAKES_BACK`.
    """

    path: str
    name: str
    size: int
    time: int
    withdrawn: bool = False

    @property
    def diff(self) -> int:
        """The diff of each of its records."""
        return -1 if self.withdrawn else 1

    @property
    def reason_prefix(self) -> str:
        """The prefix of the reason of each of its errors."""
        return TAKES_BACK if self.withdrawn else ""
