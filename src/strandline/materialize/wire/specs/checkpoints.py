"""Checkpoints on the wire: what the endpoint keeps for its runtime, without a look inside.

The wire's checkpoint has a number for each journal that is read.  Ours has a time for each state key, so a state key
stands there as a journal of the name ``strandline;`` + key.  Another runtime's checkpoint is kept as it is, as one
entry whose key is its bytes: our drivers, when they are served, keep it beside the bindings that it is about.

An endpoint that has a checkpoint of nothing says so by a field that no message has, because in Protobuf a message
without fields cannot be told from none everywhere.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strandline.errors import ConfigError, CorruptionError
from strandline.materialize.protocol.refusals import FILLED_THERE
from strandline.materialize.protocol.task import NOTHING
from strandline.materialize.protocol.task import Checkpoint as Times
from strandline.materialize.wire.codec.messages import Checkpoint, Message
from strandline.materialize.wire.specs.names import token, untoken

_OURS: Final = "strandline;"
_WHOLE: Final = "flow;"
EXPLICIT_ZERO: Final = bytes.fromhex("f8ffffff0f01")
"""The checkpoint that is there, and before everything."""
_BEGUN: Final = 1
"""The time of a binding that another runtime has committed to: our drivers only ask whether it has one."""


def to_wire(checkpoint: Times) -> Message:
    """Return one of our checkpoints as the wire's.

    >>> to_wire(Times((("t.v0", 5),))).sources["strandline;t.v0"].read_through
    5
    """
    message = Checkpoint()
    if not checkpoint.times:
        message.MergeFromString(EXPLICIT_ZERO)
    for key, time in checkpoint.times:
        message.sources[_OURS + token(key)].read_through = time
    return message


def from_wire(message: Message) -> Times:
    """Return the checkpoint that `to_wire` wrote.

    Raises:
        ConfigError: another runtime has committed to the endpoint.
    """
    if not message.sources:
        return NOTHING
    for journal in sorted(message.sources):
        if not journal.startswith(_OURS):
            whom, what = f"another program, which has read {journal!r},", "the endpoint"
            raise ConfigError(FILLED_THERE.said(whom=whom, what=what, rest="that program's checkpoint"))
    times = ((untoken(journal.removeprefix(_OURS)), each.read_through) for journal, each in message.sources.items())
    return Times(tuple(sorted(times)))


# --- where one of our drivers is served to any runtime ----------------------------------------------------------------
def kept(message: Message, state_keys: Sequence[str]) -> Times:
    """Return what a driver of ours keeps for a runtime that commits to the bindings ``state_keys``."""
    if all(journal.startswith(_OURS) for journal in message.sources) and message.sources:
        return from_wire(message)
    whole = _WHOLE + base64.urlsafe_b64encode(message.SerializeToString(deterministic=True)).decode()
    return Times(tuple(sorted({**dict.fromkeys(state_keys, _BEGUN), whole: 0}.items())))


def returned(checkpoint: Times) -> Message:
    """Return, for the wire, what a driver of ours has kept.

    Raises:
        CorruptionError: the endpoint's checkpoint was damaged.
    """
    found = [key for key, _ in checkpoint.times if key.startswith(_WHOLE)]
    if not found:
        return to_wire(checkpoint)
    message = Checkpoint()
    try:
        message.ParseFromString(base64.urlsafe_b64decode(found[0].removeprefix(_WHOLE)))
    except (DecodeError, binascii.Error) as error:
        raise CorruptionError(f"the checkpoint that the endpoint keeps is damaged: {error}") from error
    return message
