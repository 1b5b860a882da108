"""The messages as classes of the Protobuf library, made from ``flow.proto`` when this module is imported."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]

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
