"""The codecs of the wire, ``proto`` and ``json``: messages to frames, and a stream of bytes to messages.

Whatever the bytes are, a reader yields messages or raises `ProtocolViolation` with the position of the frame that is
wrong; after that the reader cannot be used again.  No frame may be longer than a codec's ``bytes_max``, so damaged
bytes that are read as a length do not allocate gigabytes.

The messages are classes of the Protobuf library, made from ``flow.proto`` when this module is imported.  In ``proto`` a
frame is a length of 32 bits, the lowest byte first, then the message as Protobuf.  In ``json`` a frame is one line, the
JSON form of Protobuf (`JsonCodec`).  Every row is a message, so what has to be known of a class of messages is worked
out once (`_plan`).

Source: protobuf.dev, "ProtoJSON Format".
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from strandline.errors import ProtocolViolation
from strandline.protofile import parse

Message: TypeAlias = Any
"""A message: the classes are made at run time, so types cannot name them."""

FILE: Final = parse("flow.proto", files(__package__).joinpath("flow.proto").read_text("utf-8"))
_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(FILE)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{FILE.package}.{name}"))


Request: Final = _class("Request")
Response: Final = _class("Response")
MaterializationSpec: Final = _class("MaterializationSpec")
CollectionSpec: Final = _class("CollectionSpec")
Checkpoint: Final = _class("Checkpoint")
ConnectorState: Final = _class("ConnectorState")
Inference: Final = _class("Inference")
LOCAL: Final = MaterializationSpec.ConnectorType.Value("LOCAL")
IMAGE: Final = MaterializationSpec.ConnectorType.Value("IMAGE")
PROTOCOL: Final = 3032023
"""The version that a connector's Spec must name."""


def said(message: Message) -> str:
    """Return which message a `Request` or a `Response` holds, by its field's name.

    >>> said(Request(flush={}))
    'flush'

    Raises `ProtocolViolation` unless it holds exactly one that is known.
    """
    found = [field.name for field, _ in message.ListFields()]
    if len(found) != 1:
        known = ", ".join(field.name for field in message.DESCRIPTOR.fields)
        has = f"both {' and '.join(found)}" if found else f"none of {known}"
        raise ProtocolViolation(f"a {message.DESCRIPTOR.name} must hold one message, and holds {has}")
    return str(found[0])


FRAME_BYTES_MAX: Final = 256 << 20
"""A frame holds one row as a document, its key and its values; or the specification of a whole task."""


class Reader(Protocol):
    """Turns bytes, as they come, into the messages of one class."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are whole now.

        Raises:
            ProtocolViolation: a frame is damaged or too long; the message says at which byte it begins.
        """
        ...

    def end(self) -> None:
        """Note that no more bytes come.

        Raises:
            ProtocolViolation: the last frame is not whole.
        """
        ...


class Codec(Protocol):
    """One of the two forms of the wire; ``name`` is what ``FLOW_RUNTIME_CODEC`` says."""

    name: str

    def encode(self, message: Message) -> bytes:
        """Return the frame of a message.

        Raises:
            ProtocolViolation: it is longer than any frame may be, or a field that must be JSON is not.
        """
        ...

    def reader(self, kind: type[Any]) -> Reader:
        """Return the reader of a stream of messages of a class."""
        ...


def bounded(frame: bytes, message: Message, bytes_max: int) -> bytes:
    """Return ``frame``; raise `ProtocolViolation` if it is too long."""
    if len(frame) > bytes_max:
        raise ProtocolViolation(
            f"a {message.DESCRIPTOR.name} of {len(frame)} bytes is longer than a frame may be, {bytes_max}"
        )
    return frame


def damaged(at: int, why: object) -> ProtocolViolation:
    """Return the error for the frame that begins at byte ``at`` of a stream."""
    return ProtocolViolation(f"the frame at byte {at} is damaged: {why}")


def truncated(at: int, there: int) -> ProtocolViolation:
    """Return the error for a stream that ends inside the frame that begins at byte ``at``."""
    return ProtocolViolation(f"the stream ends inside the frame at byte {at}, after {there} bytes of it")


def too_long(at: int, length: int, bytes_max: int) -> ProtocolViolation:
    """Return the error for a frame of ``length`` bytes or more."""
    return ProtocolViolation(f"the frame at byte {at} is {length} bytes long; at most {bytes_max} are allowed")


_SHORT: Final = re.compile(r"(?P<short>\w+?)_json(?P<map>_map)?")
_DURATION: Final = re.compile(r"(?P<sign>-?)(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?s")
_INSTANT: Final = re.compile(r"(?P<whole>[^.Zz+]+?)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>[Zz]|[+-]\d\d:\d\d)")
_NANOS_DIGITS: Final = 9
_NULL: Final = b"null"
_LONG: Final = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_FIXED64})
_SHORT_INTEGERS: Final = frozenset(
    {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32}
)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_text = msgspec.json.Encoder().encode
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
_value: Final = msgspec.json.Decoder()


class Unreadable(Exception):
    """The text is JSON, but not of this field."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field, its name in JSON, and the two ways of one of its values (of a map's or a list's)."""

    descriptor: FieldDescriptor
    json_name: str
    is_map: bool
    write: Callable[[Any, list[bytes]], None]
    read: Callable[[bytes], Any]


# --- writing ----------------------------------------------------------------------------------------------------------
def write(message: Message, parts: list[bytes]) -> None:
    """Append the JSON of a message to ``parts``."""
    if (special := _SPECIAL.get(message.DESCRIPTOR.full_name)) is not None:
        parts.append(_text(special[0](message)))
        return
    by_number = _plan(message.DESCRIPTOR)[0]
    before = b"{"
    for descriptor, value in message.ListFields():
        field = by_number[descriptor.number]
        parts.append(before + _text(field.json_name) + b":")
        before = b","
        if field.is_map:
            _write_map(field, value, parts)
        elif descriptor.is_repeated:
            _write_list(field, value, parts)
        else:
            field.write(value, parts)
    parts.append(b"{}" if before == b"{" else b"}")


def _write_map(field: _Field, value: Any, parts: list[bytes]) -> None:
    before = b"{"
    for key in sorted(value):
        parts.append(before + _text(key) + b":")
        field.write(value[key], parts)
        before = b","
    parts.append(b"}")


def _write_list(field: _Field, values: Any, parts: list[bytes]) -> None:
    before = b"["
    for value in values:
        parts.append(before)
        field.write(value, parts)
        before = b","
    parts.append(b"]")


def _writer(field: FieldDescriptor, *, inline: bool) -> Callable[[Any, list[bytes]], None]:
    """Return how one value of a field is written."""
    if inline:
        return lambda value, parts: parts.append(_inline(value))
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return write
    if field.type == FieldDescriptor.TYPE_ENUM:
        symbols = field.enum_type.values_by_number
        return lambda value, parts: parts.append(_text(symbols[value].name if value in symbols else value))
    if field.type in _LONG:
        return lambda value, parts: parts.append(_text(str(value)))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value, parts: parts.append(_text(base64.b64encode(value).decode()))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return lambda value, parts: parts.append(_text(value if math.isfinite(value) else _unbounded(value)))
    return lambda value, parts: parts.append(_text(value))


def _inline(text: bytes) -> bytes:
    """Return JSON text as a part of a line."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _unbounded(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# --- reading ----------------------------------------------------------------------------------------------------------
def read(message: Message, text: bytes) -> None:
    """Set the fields of an empty message from its JSON.

    Raises `Unreadable`, or what the JSON decoder or the message raises for a value that does not fit.
    """
    if (special := _SPECIAL.get(message.DESCRIPTOR.full_name)) is not None:
        special[1](message, _value.decode(text))
        return
    by_name = _plan(message.DESCRIPTOR)[1]
    for name, raw in _object.decode(text).items():
        field = by_name.get(name)
        if field is None:
            continue
        value = bytes(raw)
        if value != _NULL or _is_inline(field):
            _set(message, field, value)


def _set(message: Message, field: _Field, text: bytes) -> None:
    name = field.descriptor.name
    if field.is_map:
        entries = getattr(message, name)
        for key, raw in _object.decode(text).items():
            if field.descriptor.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_MESSAGE:
                read(entries[key], bytes(raw))
            else:
                entries[key] = field.read(bytes(raw))
    elif field.descriptor.is_repeated:
        values = getattr(message, name)
        for raw in _array.decode(text):
            if field.descriptor.type == FieldDescriptor.TYPE_MESSAGE:
                read(values.add(), bytes(raw))
            else:
                values.append(field.read(bytes(raw)))
    elif field.descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        inner = getattr(message, name)
        inner.SetInParent()
        read(inner, text)
    else:
        setattr(message, name, field.read(text))


def _reader(field: FieldDescriptor, *, inline: bool) -> Callable[[bytes], Any]:
    """Return how one value of a field that is no message is read."""
    if inline:
        return lambda text: text
    name = field.name
    if field.type == FieldDescriptor.TYPE_ENUM:
        symbols = field.enum_type.values_by_name
        return lambda text: _symbol(name, symbols, _value.decode(text))
    if field.type in _LONG | _SHORT_INTEGERS:
        return lambda text: _integer(name, _value.decode(text))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda text: _base64(_of(str, name, _value.decode(text)))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return lambda text: _double(name, _value.decode(text))
    kind = bool if field.type == FieldDescriptor.TYPE_BOOL else str
    return lambda text: _of(kind, name, _value.decode(text))


def _of(kind: type[Any], name: str, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise Unreadable(f"field {name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _symbol(name: str, symbols: Mapping[str, Any], value: Any) -> int:
    if isinstance(value, str):
        if value not in symbols:
            raise Unreadable(f"field {name} has no symbol {value!r}")
        return int(symbols[value].number)
    return int(_of(int, name, value))


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) else int(_of(int, name, value))


def _double(name: str, value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value] if value in _NOT_FINITE else float(value)
    return float(value) if isinstance(value, float) else float(_of(int, name, value))


def _base64(text: str) -> bytes:
    """Return bytes of either alphabet, padded or not."""
    standard = text.translate(str.maketrans("-_", "+/"))
    return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)


# --- plans ------------------------------------------------------------------------------------------------------------
@cache
def _plan(kind: Descriptor) -> tuple[Mapping[int, _Field], Mapping[str, _Field]]:
    """Return the fields of a class of messages by number, and by each of the names that a reader takes."""
    fields = [_field(descriptor) for descriptor in kind.fields]
    names = {name: field for field in fields for name in (field.descriptor.name, field.descriptor.json_name)}
    return {field.descriptor.number: field for field in fields}, {**names, **{f.json_name: f for f in fields}}


def _field(descriptor: FieldDescriptor) -> _Field:
    is_map = descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry
    short = _SHORT.fullmatch(descriptor.name)
    values = descriptor.message_type.fields_by_name["value"] if is_map else descriptor
    inline = short is not None
    return _Field(
        descriptor,
        _camel(short["short"]) if short is not None else descriptor.json_name,
        is_map,
        _writer(values, inline=inline),
        _reader(values, inline=inline),
    )


def _is_inline(field: _Field) -> bool:
    return not field.is_map and _SHORT.fullmatch(field.descriptor.name) is not None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- messages that are texts ------------------------------------------------------------------------------------------
def _fraction(nanos: int) -> str:
    """Return the fraction of a second in as few digits as hold it, of 0, 3, 6 or 9."""
    digits = f"{nanos:0{_NANOS_DIGITS}d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


def _nanos(digits: str | None) -> int:
    return int((digits or "").ljust(_NANOS_DIGITS, "0"))


def _write_duration(message: Message) -> str:
    sign = "-" if message.seconds < 0 or message.nanos < 0 else ""
    return f"{sign}{abs(message.seconds)}{_fraction(abs(message.nanos))}s"


def _read_duration(message: Message, value: Any) -> None:
    found = _DURATION.fullmatch(_of(str, "duration", value))
    if found is None:
        raise Unreadable(f"{value!r} is no duration, such as 1.5s")
    sign = -1 if found["sign"] else 1
    message.seconds, message.nanos = sign * int(found["seconds"]), sign * _nanos(found["fraction"])


def _write_instant(message: Message) -> str:
    whole = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=message.seconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f"{_fraction(message.nanos)}Z"


def _read_instant(message: Message, value: Any) -> None:
    found = _INSTANT.fullmatch(_of(str, "timestamp", value))
    if found is None:
        raise Unreadable(f"{value!r} is no timestamp, such as 2024-01-01T00:00:00Z")
    whole = dt.datetime.fromisoformat(found["whole"] + found["zone"])
    since = whole - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    message.seconds, message.nanos = since.days * 86_400 + since.seconds, _nanos(found["fraction"])


_SPECIAL: Final[Mapping[str, tuple[Callable[[Message], str], Callable[[Message, Any], None]]]] = {
    f"{FILE.package}.Duration": (_write_duration, _read_duration),
    f"{FILE.package}.Timestamp": (_write_instant, _read_instant),
}


_LENGTH: Final = struct.Struct("<I")


class ProtoReader:
    """See `Reader`."""

    def __init__(self, kind: type[Any], bytes_max: int) -> None:
        self._kind = kind
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """See `Reader.feed`."""
        self._buffer += data
        used = 0
        try:
            while (end := self._end(used)) is not None:
                message = self._read(used, end)
                used = end
                yield message
        finally:
            del self._buffer[:used]
            self._at += used

    def end(self) -> None:
        """See `Reader.end`."""
        if self._buffer:
            raise truncated(self._at, len(self._buffer))

    def _end(self, begin: int) -> int | None:
        """Return where the frame that begins at ``begin`` ends; None if it is not whole."""
        if len(self._buffer) - begin < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, begin)
        if length > self._bytes_max:
            raise too_long(self._at + begin, length, self._bytes_max)
        end = begin + _LENGTH.size + int(length)
        return end if end <= len(self._buffer) else None

    def _read(self, begin: int, end: int) -> Message:
        message = self._kind()
        try:
            message.ParseFromString(bytes(memoryview(self._buffer)[begin + _LENGTH.size : end]))
        except (DecodeError, RuntimeError, UnicodeDecodeError) as error:
            raise damaged(self._at + begin, error) from error
        return message


class ProtoCodec:
    """See `Codec`."""

    name = "proto"

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max

    def encode(self, message: Message) -> bytes:
        """See `Codec.encode`."""
        try:
            body = message.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise ProtocolViolation(f"a {message.DESCRIPTOR.name} has no Protobuf form: {error}") from error
        return bounded(_LENGTH.pack(len(body)) + body, message, self._bytes_max)

    def reader(self, kind: type[Any]) -> ProtoReader:
        """See `Codec.reader`."""
        return ProtoReader(kind, self._bytes_max)


_END: Final = b"\n"


class JsonReader:
    """See `Reader`."""

    def __init__(self, kind: type[Any], bytes_max: int) -> None:
        self._kind = kind
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._at = 0
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """See `Reader.feed`."""
        searched, self._searched = self._searched, 0
        self._buffer += data
        used = 0
        try:
            while (end := self._buffer.find(_END, searched)) >= 0:
                line = bytes(memoryview(self._buffer)[used:end])
                if len(line) > self._bytes_max:
                    raise too_long(self._at + used, len(line), self._bytes_max)
                message = self._read(line, self._at + used) if line.strip() else None
                used = searched = end + 1
                if message is not None:
                    yield message
        finally:
            del self._buffer[:used]
            self._at += used
        self._searched = len(self._buffer)
        if len(self._buffer) > self._bytes_max:
            raise too_long(self._at, len(self._buffer), self._bytes_max)

    def end(self) -> None:
        """See `Reader.end`."""
        if self._buffer.strip():
            raise truncated(self._at, len(self._buffer))

    def _read(self, line: bytes, at: int) -> Message:
        message = self._kind()
        try:
            read(message, line)
        except (Unreadable, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise damaged(at, error) from error
        return message


class JsonCodec:
    """See `Codec`.

    Names are in camel case.  A field ``x_json`` holds JSON text, which is written unchanged under the name ``x``; so
    are the values of ``x_json_map``.  Bytes are base64, integers of 64 bits are texts, those of 32 bits numbers; enums
    are their symbols.  A zero is not written, but an empty message that is present is: ``{}``.

    A reader also takes the names of the ``.proto``, numbers of enums, and integers of either form, and it skips unknown
    fields.  Null means that a field is not there, except in place of JSON text: there it is the text.
    """

    name = "json"

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max

    def encode(self, message: Message) -> bytes:
        """See `Codec.encode`."""
        parts: list[bytes] = []
        try:
            write(message, parts)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolViolation(f"a {message.DESCRIPTOR.name} has no JSON form: {error}") from error
        parts.append(_END)
        return bounded(b"".join(parts), message, self._bytes_max)

    def reader(self, kind: type[Any]) -> JsonReader:
        """See `Codec.reader`."""
        return JsonReader(kind, self._bytes_max)
