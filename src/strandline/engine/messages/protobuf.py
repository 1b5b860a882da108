"""Protobuf: the bytes of a message as Python's values, by a set of descriptors, without generated code.

A field is found by its name.  What is not set is NULL where Protobuf tells it apart (messages, optional fields,
members of a oneof), and the field's default where it does not.  Timestamps and wrappers of the well-known types are
values; an enum is its symbol, or its number where that has no symbol.

Framed bytes say which message of its file they are; another one than the format's is refused.

Source: protobuf.dev, "field presence" and "well-known types".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strandline.algebra import types
from strandline.algebra.messages import FRAME_BYTES, Coding, framed_id
from strandline.algebra.schema import Schema
from strandline.engine.files.values import Refused
from strandline.errors import DefinitionError

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NANOS_PER_MICRO: Final = 1_000
_VARINT_BYTES_MAX: Final = 10


def reader(coding: Coding, descriptor: bytes, wanted: Schema) -> Callable[[bytes], Any]:
    """Return the function that decodes bytes as a dict of the columns ``wanted``, or raises `Refused`.

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
