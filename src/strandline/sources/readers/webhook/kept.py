"""What the record shard of a webhook holds: requests that wait, keys that are remembered, and how far it is.

See `strandline.sources.readers.webhook.inbox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import xxhash

MESSAGE_BYTES: Final = 64
"""What a message takes besides its bytes."""


class Arrival(msgspec.Struct, frozen=True, array_like=True, tag="arrival"):
    """A request: the offset of its first message, when it came, its key (or none), chosen headers, its messages."""

    first: int
    at_ms: int
    key: str
    headers: tuple[tuple[str, bytes], ...]
    messages: tuple[bytes, ...]

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + len(self.messages)


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """A key: where the messages of its request began, their number, when it came, and a hash of its content."""

    key: str
    first: int
    count: int
    at_ms: int
    content: int


class Next(msgspec.Struct, frozen=True, array_like=True, tag="next"):
    """The offset of the next message if none waits."""

    offset: int


Kept: TypeAlias = Arrival | Seen | Next

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode(kept: Kept) -> bytes:
    """Return the data of a record."""
    return _encoder.encode(kept)


def decode(data: bytes) -> Kept:
    """Return what a record's data say.  Raises ``msgspec.MsgspecError``."""
    found: Kept = _decoder.decode(data)
    return found


def size(messages: Sequence[bytes]) -> int:
    """Return how many bytes messages take."""
    return sum(map(len, messages)) + MESSAGE_BYTES * len(messages)


def content(messages: Sequence[bytes]) -> int:
    """Return a hash of messages, and of where they are cut."""
    found = xxhash.xxh64()
    for each in messages:
        found.update(len(each).to_bytes(8, "big"))
        found.update(each)
    return found.intdigest() >> 1


def seen_of(arrival: Arrival) -> Seen:
    """Return what is remembered of a request."""
    return Seen(arrival.key, arrival.first, len(arrival.messages), arrival.at_ms, content(arrival.messages))
