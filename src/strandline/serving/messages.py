"""The messages of Flight SQL as classes of the Protobuf library, made from ``flight_sql.proto``, and their envelope.

Source: https://arrow.apache.org/docs/format/FlightSql.html.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.any_pb2 import Any as Envelope  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strandline.errors import InvalidUsage
from strandline.protofile import parse

Message: TypeAlias = Any
"""A message: the classes are made at run time, so types cannot name them."""

FILE: Final = parse("flight_sql.proto", files(__package__).joinpath("flight_sql.proto").read_text("utf-8"))
_PREFIX: Final = "type.googleapis.com/"
_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(FILE)
_KINDS: Final = {
    message.name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{FILE.package}.{message.name}"))
    for message in FILE.message_type
}


def made(kind: str, **fields: Any) -> Message:
    """Return a message.

    >>> made("CommandStatementQuery", query="SELECT 1").query
    'SELECT 1'
    """
    return _KINDS[kind](**fields)


def kind_of(message: Message) -> str:
    """Return what kind of message it is."""
    return str(message.DESCRIPTOR.name)


def packed(message: Message) -> bytes:
    """Return a message in its envelope, which says of which kind it is."""
    url = f"{_PREFIX}{message.DESCRIPTOR.full_name}"
    return bytes(Envelope(type_url=url, value=message.SerializeToString()).SerializeToString())


def unpacked(data: bytes) -> Message:
    """Return the message in an envelope.

    >>> unpacked(packed(made("CommandGetTables", table_types=["TABLE"]))).table_types
    ['TABLE']

    Raises `InvalidUsage` if it is none that is known.
    """
    envelope = Envelope()
    try:
        envelope.ParseFromString(data)
        name = envelope.type_url.rpartition(".")[2]
        if not envelope.type_url.startswith(f"{_PREFIX}{FILE.package}.") or name not in _KINDS:
            raise InvalidUsage(f"Strandline does not know the call {envelope.type_url or 'without a name'!r}")
        found = _KINDS[name]()
        found.ParseFromString(envelope.value)
    except (DecodeError, RuntimeError, UnicodeDecodeError) as error:
        raise InvalidUsage(f"this is no message of Flight SQL: {error}") from error
    return found
