"""Parts of messages that Python decodes: Avro and Protobuf.

One function makes a table of raw messages one of parsed messages.  Spark calls it for batches of a large read, and the
decoder for the few messages that are in this process.

Avro bytes are decoded by the writer's schema, Protobuf bytes by a set of descriptors, without generated code.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro import _read_py as plain
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import FRAME_BYTES, Coding, MessageEncoding, MessageFormat, framed_id
from strandline.algebra.schema import Schema, struct
from strandline.engine.files.avro import Refused, meant, named, nests, sent_of
from strandline.engine.messages.parsed import AFTER, BEFORE, OP, UNSENT, VALUE, Part, parts, wrong
from strandline.errors import DefinitionError

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NANOS_PER_MICRO: Final = 1_000
_VARINT_BYTES_MAX: Final = 10


def protobuf_reader(coding: Coding, descriptor: bytes, wanted: Schema) -> Callable[[bytes], Any]:
    """Return the function that decodes bytes as a dict of the columns ``wanted``, or raises `Refused`.

    A field is found by its name.  An unset field is NULL where Protobuf knows that it is unset (messages, optional
    fields, members of a oneof), and has its default elsewhere.  Timestamps and wrappers of the well-known types are
    values; an enum is its symbol, or its number if that has no symbol.

    Framed bytes name a message of their file; one that is not the format's is refused.

    Source: protobuf.dev, "field presence" and "well-known types".

    Raises `DefinitionError` if the descriptors lack the message or one of the columns.
    """
    kind = _found(descriptor, coding.message or "")
    _check(kind, types.columns(wanted))
    fields = [kind.fields_by_name[name] for name in wanted.names]
    make = message_factory.GetMessageClass(kind)

    def read(data: bytes) -> Any:
        message = make()
        try:
            message.ParseFromString(_bare(data, kind) if coding.framed else data)
        except (DecodeError, RuntimeError) as error:
            raise Refused(f"it is not a Protobuf message {kind.full_name}: {error}") from error
        return {field.name: _value(message, field) for field in fields}

    return read


def _found(descriptor: bytes, name: str) -> Descriptor:
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptor)
        waiting = list(files.file)
        while waiting:  # in any order: a file can be added behind those that it imports
            added = {file.name for file in files.file} - {file.name for file in waiting}
            ready = [file for file in waiting if added.issuperset(file.dependency)]
            if not ready:
                raise DefinitionError(
                    f"the descriptor set lacks a file that {waiting[0].name} imports: include imports"
                )
            for file in ready:
                pool.Add(file)
            waiting = [file for file in waiting if file not in ready]
        return pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise DefinitionError(f"the descriptor set has no message {name!r}") from error
    except (DecodeError, TypeError) as error:
        raise DefinitionError(f"this is no descriptor set: {error}") from error


def _check(kind: Descriptor, wanted: Iterable[tuple[str, types.Type]]) -> None:
    """Raise `DefinitionError` if a message lacks one of these fields, or a message in it one of theirs."""
    for name, given in wanted:
        if name not in kind.fields_by_name:
            raise DefinitionError(
                f"message {kind.full_name} has no field {name!r}; it has {', '.join(kind.fields_by_name)}"
            )
        inner, of = kind.fields_by_name[name].message_type, given
        if isinstance(of, types.Array):
            of = of.element
            if _is_map(inner) and isinstance(of, types.Struct):  # its two fields may have any names
                inner, of = inner.fields_by_name["value"].message_type, of.fields[-1][1]
        if isinstance(of, types.Struct) and inner is not None and not _is_value(inner):
            _check(inner, of.fields)


def _is_map(kind: Descriptor | None) -> bool:
    return kind is not None and bool(kind.GetOptions().map_entry)


def _is_value(kind: Descriptor) -> bool:
    return kind.full_name == _TIMESTAMP or kind.full_name in _WRAPPERS


def _bare(data: bytes, kind: Descriptor) -> bytes:
    """Return what stands behind the frame."""
    if framed_id(data) is None:
        raise Refused("it does not begin with a schema's id")
    count, at = _varint(data, FRAME_BYTES)
    indexes = [0]
    if count:
        indexes = []
        for _ in range(min(count, len(data))):
            index, at = _varint(data, at)
            indexes.append(index)
    if indexes != _path(kind):
        raise Refused(f"it is message {indexes} of its file; {kind.full_name} is {_path(kind)}")
    return data[at:]


def _path(kind: Descriptor) -> list[int]:
    """Return the position of a message's type in its file, those of the types around it first."""
    if kind.containing_type is None:
        return [list(kind.file.message_types_by_name).index(kind.name)]
    return [*_path(kind.containing_type), list(kind.containing_type.nested_types_by_name).index(kind.name)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at ``at``, and what stands behind it."""
    found = 0
    for n in range(_VARINT_BYTES_MAX):
        if at + n >= len(data):
            break
        found |= (data[at + n] & 0x7F) << 7 * n
        if data[at + n] < 0x80:  # the highest bit says that more follow
            return found >> 1 ^ -(found & 1), at + n + 1
    raise Refused("its message indexes are not whole")


def _value(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if _is_map(field.message_type):
        of_value = field.message_type.fields_by_name["value"]
        return {key: _single(value[key], of_value) for key in value}
    if field.is_repeated:
        return [_single(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    kind = field.message_type
    if kind is None:
        return value
    if kind.full_name == _TIMESTAMP:
        micros, rest = divmod(value.nanos, _NANOS_PER_MICRO)
        if rest:
            raise Refused(f"field `{field.name}` has nanoseconds, which no column holds")
        try:
            return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=micros)
        except OverflowError as error:
            raise Refused(f"field `{field.name}` is a time of no year from 1 to 9999") from error
    if kind.full_name in _WRAPPERS:
        return value.value
    return {each.name: _value(value, each) for each in kind.fields}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema; ``nests``: see `strandline.engine.files.avro`."""

    parsed: Any
    nests: bool


def understood(text: str, *, defaults: bool = False) -> AvroSchema:
    """Return a schema; ``defaults``: those of its fields are values.

    fastavro gives a field's default as it stands in the schema's JSON, where a date is a number and bytes are a text
    of their code points.  So the defaults of a reader's schema are replaced by values.

    Source: the Avro specification, "schema resolution".

    >>> field = {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1}
    >>> text = json.dumps({"type": "record", "name": "r", "fields": [field]})
    >>> understood(text, defaults=True).parsed["fields"][0]["default"]
    datetime.date(1970, 1, 2)

    Raises `DefinitionError` if it is none.
    """
    named: dict[str, Any] = {}
    try:
        parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
        if defaults:
            fields = [each for kind in named.values() for each in kind.get("fields", ()) if "default" in each]
            values = [_default(each["default"], each["type"], named) for each in fields]
            for each, value in zip(fields, values, strict=True):
                each["default"] = value
    except (ValueError, SchemaParseException, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DefinitionError(f"this is no Avro schema ({error}): {text[:200]}") from error
    return AvroSchema(parsed, nests(named))


def _default(given: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """Return what a default in JSON stands for."""
    if isinstance(schema, list):
        return _default(given, next((each for each in schema if (each == "null") == (given is None)), schema[0]), named)
    if isinstance(schema, str):
        return _default(given, named[schema], named) if schema in named else _default(given, {"type": schema}, named)
    match schema["type"]:
        case "record" | "error":
            fields = [each for each in schema["fields"] if each["name"] in given or "default" in each]
            return {
                each["name"]: _default(given.get(each["name"], each.get("default")), each["type"], named)
                for each in fields
            }
        case "array":
            return [_default(each, schema["items"], named) for each in given]
        case "map":
            return {name: _default(each, schema["values"], named) for name, each in given.items()}
        case "bytes" | "fixed":
            value: Any = given.encode("latin-1")
        case "float" | "double":
            value = float(given)
        case _:
            value = given
    return meant(value, schema)


def avro_reader(coding: Coding, schemas: Mapping[int, str]) -> Callable[[bytes], Any]:
    """Return the function that decodes bytes, or raises `Refused`.

    The writer's schema is the format's, or, for framed bytes, the one that the frame names.  If there is a reader's
    schema too, Avro's own rules resolve one to the other: aliases, defaults, promotions.

    Source: the Avro specification, "schema resolution".

    Raises `DefinitionError` if a schema is none.
    """
    own = None if coding.avro_schema is None else understood(coding.avro_schema, defaults=True)
    if not coding.framed:
        assert own is not None, "the format was checked"
        return lambda data: _read(io.BytesIO(data), own, None)
    known: dict[int, AvroSchema] = {}

    def framed(data: bytes) -> Any:
        number = framed_id(data)
        if number is None:
            raise Refused("it does not begin with a schema's id")
        if number not in known:
            if number not in schemas:
                raise Refused(f"the registry has no schema {number}")
            known[number] = _of_registry(number, schemas[number])
        return _read(io.BytesIO(data[FRAME_BYTES:]), known[number], own)

    return framed


def _of_registry(number: int, text: str) -> AvroSchema:
    """Return a writer's schema.  A registry has schemas of other kinds, too, and bytes may name one by mistake."""
    try:
        return understood(text)
    except DefinitionError:
        raise Refused(f"the registry's schema {number} is no Avro schema") from None


def _read(data: io.BytesIO, written: AvroSchema, wanted: AvroSchema | None) -> Any:
    # The reader that is not compiled is slow; it refuses what is nested too deeply, instead of ending the process.
    read = plain.schemaless_reader if written.nests else fastavro.schemaless_reader
    try:
        found = read(data, written.parsed, None if wanted is None else wanted.parsed)
    except Exception as error:  # damaged bytes can make it raise any exception
        raise Refused(f"it is not Avro of this schema: {_told(error)}") from error
    left = len(data.getbuffer()) - data.tell()
    if left:
        raise Refused(f"{left} bytes follow the Avro value")
    return found


def _told(error: Exception) -> str:
    """Say what is wrong, the same at each read: some of its texts have the address of an object in them."""
    if isinstance(error, EOFError):
        return "it ends too early"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, SchemaResolutionError) and "{" not in str(error):  # a text with a whole schema says nothing
        return str(error)
    return type(error).__name__


_Read = Callable[[bytes], Any]
_NAMES: Final = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Decoding:
    """What Python decodes of messages; plain data, so that Spark can send it to its workers."""

    schema: Schema
    form: MessageFormat

    @property
    def parts(self) -> list[Part]:
        """The parts that it decodes."""
        return [part for part in parts(self.form, self.schema) if part.coding.encoding.binary]

    def table(self, raw: pa.Table) -> pa.Table:
        """Return parsed messages."""
        batches = list(self.batches(raw.to_batches()))
        return pa.Table.from_batches(batches, self.target(raw.schema))

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return parsed messages (lazy)."""
        target = from_arrow_schema(self.target(to_arrow_schema(raw.schema, timezone="UTC")))
        return raw.mapInArrow(self.batches, target)

    def target(self, raw: pa.Schema) -> pa.Schema:
        """Return the schema of the parsed messages of raw ones."""
        for part in self.parts:
            raw = raw.append(pa.field(part.name, arrow(types.parse(part.name, struct(part.fields)))))
            raw = raw.append(pa.field(wrong(part.name), pa.string()))
            if part.sendable:
                raw = raw.append(pa.field(UNSENT, _NAMES))
        return raw

    def batches(self, raw: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield parsed messages; this is what runs in Spark's workers."""
        readers = [(part, _reader(part, self.form)) for part in self.parts]
        for batch in raw:
            arrays, fields = list(batch.columns), list(batch.schema)
            for part, read in readers:
                kind = arrow(types.parse(part.name, struct(part.fields)))
                values, told = _decoded(batch.column(part.source), read)
                arrays += [pa.array(values, kind), pa.array(told, pa.string())]
                fields += [pa.field(part.name, kind), pa.field(wrong(part.name), pa.string())]
                if part.sendable:
                    unsent = [None if value is None else value[UNSENT] for value in values]
                    arrays.append(pa.array(unsent, _NAMES))
                    fields.append(pa.field(UNSENT, _NAMES))
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def decoding(schema: Schema, form: MessageFormat) -> Decoding | None:
    """Return what Python decodes; None if it is nothing.

    Raises `DefinitionError` if the format's schemas cannot be understood or lack a column.
    """
    found = Decoding(schema, form)
    for part in found.parts:
        _reader(part, form)
    return found if found.parts else None


def _decoded(source: pa.Array, read: _Read) -> tuple[list[Any], list[str | None]]:
    values: list[Any] = []
    told: list[str | None] = []
    for data in source.to_pylist():
        value, reason = None, None
        if data is not None:
            try:
                value = read(data)
            except Refused as refused:
                reason = str(refused)
        values.append(value)
        told.append(reason)
    return values, told


def _reader(part: Part, form: MessageFormat) -> _Read:
    """Return the function that decodes bytes as the struct of a part, or raises `Refused`."""
    if part.coding.encoding is MessageEncoding.AVRO:
        read = avro_reader(part.coding, form.schemas)
    else:
        assert form.descriptor is not None, "the format was checked"
        read = protobuf_reader(part.coding, form.descriptor, part.fields)
    return _change(read, part) if part.change else _row(read, part)


def _row(read: _Read, part: Part) -> _Read:
    kinds = {column.name: column.type for column in part.held}
    converters = [(name, named(name, kind, kinds[name])) for name, kind in types.columns(part.held)]
    alone = converters[0] if len(converters) == 1 else None

    def row(data: bytes) -> Any:
        found = read(data)
        if isinstance(found, dict):
            return {name: convert(found.get(name)) for name, convert in converters}
        if found is not None and alone is not None:
            return {alone[0]: alone[1](found)}
        raise Refused("it is null" if found is None else "it is not a record")

    return row


def _change(read: _Read, part: Part) -> _Read:
    halves = {AFTER: part.held} | ({BEFORE: part.before} if part.before.columns else {})
    inner = {name: _row(lambda found: found, Part(VALUE, "", part.coding, held)) for name, held in halves.items()}

    def change(data: bytes) -> Any:
        found = read(data)
        if not isinstance(found, dict):
            raise Refused("it is not a record")
        op = found.get(OP)
        made: dict[str, Any] = {OP: op if isinstance(op, str) else None, UNSENT: None}
        for name, row in inner.items():
            half = found.get(name)
            try:
                if name == AFTER and isinstance(half, dict):
                    half, made[UNSENT] = sent_of(half, part.sendable)
                made[name] = None if half is None else row(half)
            except Refused as refused:
                raise Refused(f"in `{name}`: {refused}") from refused
        return made

    return change
