"""The codec ``json``: the JSON form of Protobuf, a message a line.

Names are in camel case; a field ``x_json`` holds JSON text, which stands there as it is under the name ``x``, and so do
the values of ``x_json_map``.  Bytes are base64, integers of 64 bits are texts, those of 32 bits numbers; enums are
their symbols.  What is zero is not written, but a message that is there and empty is: ``{}``.

A reader also takes the names as they are in the ``.proto``, numbers of enums, and integers of either form, and it skips
what it does not know.  Null means that a field is not there, except where JSON text stands: there it is the text.

Source: protobuf.dev, "ProtoJSON Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from strandline.errors import ProtocolViolation
from strandline.materialize.wire.codec.framing import FRAME_BYTES_MAX, bounded, damaged, too_long, truncated
from strandline.materialize.wire.codec.json_fields import Unreadable, read, write
from strandline.materialize.wire.codec.messages import Message

_END: Final = b"\n"


class JsonReader:
    """See `framing.Reader`."""

    def __init__(self, kind: type[Any], bytes_max: int) -> None:
        self._kind = kind
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._at = 0
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """See `framing.Reader.feed`."""
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
        """See `framing.Reader.end`."""
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
    """See `framing.Codec`."""

    name = "json"

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max

    def encode(self, message: Message) -> bytes:
        """See `framing.Codec.encode`."""
        parts: list[bytes] = []
        try:
            write(message, parts)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolViolation(f"a {message.DESCRIPTOR.name} has no JSON form: {error}") from error
        parts.append(_END)
        return bounded(b"".join(parts), message, self._bytes_max)

    def reader(self, kind: type[Any]) -> JsonReader:
        """See `framing.Codec.reader`."""
        return JsonReader(kind, self._bytes_max)
