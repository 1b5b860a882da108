"""Frames: how a message becomes bytes, and how bytes become a message again or are refused.

A frame is a map in MessagePack: ``format``, ``kind`` (the message's name) and ``fields`` (`plans`).  Equal messages
have equal frames, if their mappings are in the same order.

- A field that is not known is skipped.  So a format is one format as long as messages only gain fields with defaults.
- A message of a kind that is not known is `Unknown`: its receiver refuses it by name, and the connection goes on.
- Fields that cannot be read make the message unknown to a replica, which refuses it by name, too (`understood`).  A
  controller ends the connection: a report that is left out would be believed never to have been made.
- Another format is refused with the whole connection, since what it means is not known.

Whatever bytes arrive, `decode` returns a message or raises `ProtocolViolation`: they come from another process, and
that process alone is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from strandline.errors import InvalidUsage, ProtocolViolation, first_line
from strandline.instance.commands import Advance
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Frontiers,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Refused,
    Response,
    Schedule,
    Status,
    Unknown,
    UpdateConfiguration,
    Welcome,
)
from strandline.instance.protocol.plans import Record
from strandline.problem import text_alone

FORMAT: Final = 2
"""Raised when an older reader would do something else than what a frame asks."""

MESSAGES: Final[Mapping[str, type]] = {
    "Hello": Hello,
    "CreateInstance": CreateInstance,
    "UpdateConfiguration": UpdateConfiguration,
    "Create": Create,
    "Schedule": Schedule,
    "AllowWrites": AllowWrites,
    "AllowCompaction": AllowCompaction,
    "Advance": Advance,
    "Peek": Peek,
    "CancelPeeks": CancelPeeks,
    "InitializationComplete": InitializationComplete,
    "Welcome": Welcome,
    "Refused": Refused,
    "Frontiers": Frontiers,
    "Status": Status,
    "Reconciled": Reconciled,
    "PeekResponse": PeekResponse,
}
"""Every kind of message, by its name in frames.  Renaming a class must not change the name."""

_NAMES: Final = {kind: name for name, kind in MESSAGES.items()}
_encode = msgspec.msgpack.Encoder(enc_hook=text_alone).encode
_decode = msgspec.msgpack.Decoder().decode


def encode(message: Command | Response | Unknown) -> bytes:
    """Return the frame of ``message``.

    >>> decode(encode(Advance(7, wait=True)))
    Advance(time=7, step=True, wait=True, turn=0, hurried={})

    Raises:
        InvalidUsage: it is no message, or holds what its fields do not allow, or a plan that is nested too deeply.
        ProtocolViolation: the frame would be longer than a carrier takes.
    """
    kind = type(message)
    name = message.name if isinstance(message, Unknown) else _NAMES.get(kind)
    if name is None:
        raise InvalidUsage(f"a {kind.__name__} is no message of the protocol")
    try:
        fields = message.fields if isinstance(message, Unknown) else Record(kind).packed(message)
        frame = _encode({"format": FORMAT, "kind": name, "fields": fields})
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidUsage(f"a {kind.__name__} cannot be sent: {type(error).__name__}: {error}") from error
    _refuse_long(frame)
    return frame


def decode(frame: bytes) -> Command | Response | Unknown:
    """Return the message of ``frame``.

    >>> decode(encode(Unknown("Dance", {"steps": 3})))
    Unknown(name='Dance', fields={'steps': 3}, why='')

    Raises:
        ProtocolViolation: it is no frame, or one of another format, or its fields are not those of its kind.
    """
    return _message(frame, *_parts(frame))


def understood(frame: bytes) -> Command | Response | Unknown:
    """Return the message of ``frame``; one whose fields alone cannot be read as `Unknown`, so that its kind is known.

    Raises `ProtocolViolation` if it is no frame, or one of another format.
    """
    kind, fields = _parts(frame)
    try:
        return _message(frame, kind, fields)
    except ProtocolViolation as error:
        return Unknown(kind, fields, first_line(error))


def _parts(frame: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the fields of a frame."""
    _refuse_long(frame)
    try:
        return _opened(_decode(frame))
    except ProtocolViolation:
        raise
    except Exception as error:
        raise _no_message(frame, error) from error


def _message(frame: bytes, kind: str, fields: dict[str, Any]) -> Command | Response | Unknown:
    known = MESSAGES.get(kind)
    if known is None:
        return Unknown(kind, fields)
    try:
        message: Command | Response = Record(known).unpacked(fields)
    except ProtocolViolation:
        raise
    except Exception as error:  # a text goes to sqlglot's parser, which fails in ways of its own
        raise _no_message(frame, error) from error
    return message


def _no_message(frame: bytes, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"a frame of {len(frame)} bytes is no message: {type(error).__name__}: {error}")


def _opened(frame: Any) -> tuple[str, dict[str, Any]]:
    """Return the kind and the fields of the plain value of a frame."""
    match frame:
        case {"format": int(format_)} if format_ != FORMAT:
            older = "this process" if format_ > FORMAT else "the other process"
            raise ProtocolViolation(
                f"the other end of the connection speaks format {format_} of the protocol, this end format {FORMAT}: "
                f"{older} runs an older version of strandline, upgrade it"
            )
        case {"format": int(), "kind": str(kind), "fields": dict(fields)}:
            return kind, fields
        case _:
            raise ValueError("it is not a map of format, kind and fields")


def _refuse_long(frame: bytes) -> None:
    if len(frame) > FRAME_BYTES_MAX:
        raise ProtocolViolation(
            f"a frame of {len(frame)} bytes is too long, at most {FRAME_BYTES_MAX} are allowed: "
            "split what it creates into smaller items"
        )
