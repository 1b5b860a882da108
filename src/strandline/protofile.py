"""Reads the text of a ``.proto`` file as a descriptor, so that neither a compiler nor generated code is needed.

Only what our own file uses is understood: messages and enums, nested or not; optional, repeated and map fields.
Anything else is a `ValueError`; a test compares the result with what the compiler of Protobuf made of the file.

Source: protobuf.dev, "Protocol Buffers Version 3 Language Specification".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_COMMENT: Final = re.compile(r"//[^\n]*")
_STATEMENT: Final = re.compile(r"\s*(?:(?P<block>message|enum)\s+(?P<name>\w+)\s*\{|(?P<end>\})|(?P<text>[^;{}]+);)")
_FIELD: Final = re.compile(
    r"(?:(?P<label>repeated)\s+)?(?P<type>[\w.]+|map<\w+, [\w.]+>)\s+(?P<name>\w+)\s*=\s*(?P<tag>\d+)"
)
_MAP: Final = re.compile(r"map<(\w+), ([\w.]+)>")
_SYMBOL: Final = re.compile(r"(?P<name>\w+)\s*=\s*(?P<number>\d+)")
_SCALARS: Final = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "fixed32", "fixed64", "int32", "int64", "string", "uint32")
}


def parse(name: str, text: str) -> FileDescriptorProto:
    """Return the descriptor of a file.

    >>> found = parse("x.proto", 'syntax = "proto3"; package p; message M { repeated M inner = 1; }')
    >>> found.message_type[0].field[0].type_name
    '.p.M'
    """
    statements = _statements(_COMMENT.sub("", text))
    if next(statements)["text"].split() != ["syntax", "=", '"proto3"']:
        raise ValueError(f"{name} does not begin with its syntax, proto3")
    package = next(statements)["text"].removeprefix("package ")
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    _body(statements, file.message_type, file.enum_type, None)
    kinds = dict(_names(f".{package}", file.message_type, file.enum_type))
    for scope, message in list(_messages(f".{package}", file.message_type)):
        for field in message.field:
            _resolve(field, scope, kinds)
    return file


def _statements(text: str) -> Iterator[dict[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _STATEMENT.match(text, at)
        if found is None:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1} is not understood")
        at = found.end()
        yield {key: value.strip() for key, value in found.groupdict().items() if value is not None}


def _body(statements: Iterator[dict[str, str]], messages: Any, enums: Any, within: DescriptorProto | None) -> None:
    for each in statements:
        match each:
            case {"block": "message", "name": name}:
                inner = messages.add(name=name)
                _body(statements, inner.nested_type, inner.enum_type, inner)
            case {"block": "enum", "name": name}:
                _symbols(statements, enums.add(name=name))
            case {"text": text} if within is not None:
                _field(text, within)
            case {"end": _} if within is not None:
                return
            case _:
                raise ValueError(f"{each} cannot be here")
    if within is not None:
        raise ValueError(f"message {within.name} has no end")


def _symbols(statements: Iterator[dict[str, str]], enum: EnumDescriptorProto) -> None:
    for each in statements:
        if "end" in each:
            return
        found = _SYMBOL.fullmatch(each["text"])
        if found is None:
            raise ValueError(f"enum {enum.name}: {each['text']!r} is no symbol")
        enum.value.add(name=found["name"], number=int(found["number"]))


def _field(text: str, within: DescriptorProto) -> None:
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(f"message {within.name}: {text!r} is no field")
    label, type_name = FieldDescriptorProto.LABEL_OPTIONAL, found["type"]
    if found["label"]:
        label = FieldDescriptorProto.LABEL_REPEATED
    if (pair := _MAP.fullmatch(type_name)) is not None:
        label, type_name = FieldDescriptorProto.LABEL_REPEATED, _entry(found["name"], within, pair[1], pair[2])
    _add(within, found["name"], int(found["tag"]), label, type_name)


def _entry(name: str, within: DescriptorProto, key: str, value: str) -> str:
    """Add the message that an entry of a map is, and return its name."""
    entry = within.nested_type.add(name=f"{_title(name)}Entry")
    entry.options.map_entry = True
    _add(entry, "key", 1, FieldDescriptorProto.LABEL_OPTIONAL, key)
    _add(entry, "value", 2, FieldDescriptorProto.LABEL_OPTIONAL, value)
    return str(entry.name)


def _add(within: DescriptorProto, name: str, tag: int, label: int, type_name: str) -> None:
    field = within.field.add(name=name, number=tag, label=label, json_name=_camel(name))
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type_name = type_name


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _messages(scope: str, messages: Any) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        inside = f"{scope}.{message.name}"
        yield inside, message
        yield from _messages(inside, message.nested_type)


def _names(scope: str, messages: Any, enums: Any) -> Iterator[tuple[str, int]]:
    """Yield every full name, and what kind of type it is."""
    yield from ((f"{scope}.{enum.name}", FieldDescriptorProto.TYPE_ENUM) for enum in enums)
    for message in messages:
        inside = f"{scope}.{message.name}"
        yield inside, FieldDescriptorProto.TYPE_MESSAGE
        yield from _names(inside, message.nested_type, message.enum_type)


def _resolve(field: FieldDescriptorProto, scope: str, kinds: dict[str, int]) -> None:
    """Give a field that names a type its full name: that of the innermost scope which has one."""
    if not field.type_name:
        return
    while scope:
        whole = f"{scope}.{field.type_name}"
        if whole in kinds:
            field.type_name, field.type = whole, kinds[whole]
            return
        scope = scope.rpartition(".")[0]
    raise ValueError(f"field {field.name}: there is no type {field.type_name}")
