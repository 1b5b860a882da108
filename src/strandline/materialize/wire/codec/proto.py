"""The codec ``proto``: a length of 32 bits, the lowest byte first, then the message as Protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from strandline.errors import ProtocolViolation
from strandline.materialize.wire.codec.framing import FRAME_BYTES_MAX, bounded, damaged, too_long, truncated
from strandline.materialize.wire.codec.messages import Message

_LENGTH: Final = struct.Struct("<I")


class ProtoReader:
    """See `framing.Reader`."""

    def __init__(self, kind: type[Any], bytes_max: int) -> None:
        self._kind = kind
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """See `framing.Reader.feed`."""
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
        """See `framing.Reader.end`."""
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
    """See `framing.Codec`."""

    name = "proto"

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max

    def encode(self, message: Message) -> bytes:
        """See `framing.Codec.encode`."""
        try:
            body = message.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise ProtocolViolation(f"a {message.DESCRIPTOR.name} has no Protobuf form: {error}") from error
        return bounded(_LENGTH.pack(len(body)) + body, message, self._bytes_max)

    def reader(self, kind: type[Any]) -> ProtoReader:
        """See `framing.Codec.reader`."""
        return ProtoReader(kind, self._bytes_max)
