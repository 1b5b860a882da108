"""What both codecs share: a codec turns a message into a frame, and a stream of bytes into messages.

Whatever the bytes are, a reader yields messages or raises `ProtocolViolation` with the position of the frame that is
wrong; after that it is of no more use.  No frame may be longer than a codec's ``bytes_max``, so that damaged bytes that
are taken for a length do not ask for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from strandline.errors import ProtocolViolation
from strandline.materialize.wire.codec.messages import Message

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
