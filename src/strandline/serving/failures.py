"""Failures: our errors as a client of Flight sees them, and back.

Any client gets one sentence and the status of gRPC that says who must act.  A client of ours also gets the error's
class, position and facts, in the trailer that Flight has for what an application wants to say, and raises the same.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from strandline import errors
from strandline.connections.addresses import cannot_listen
from strandline.errors import (
    AsOfError,
    CollectionError,
    ConfigError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    Position,
    Silent,
    StrandlineError,
    Unavailable,
    first_line,
)
from strandline.instance.carriers.access import Address
from strandline.instance.carriers.exchange import spoken

OURS: Final = "strandline-client"
"""The header by which a client of ours says that it is one."""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it crosses: the name of its class, and what is its own."""

    kind: str
    message: str
    line: int = 0
    column: int = 0
    errors: list[dict[str, Any]] = []
    since: int | None = None


class Refused(pa.ArrowInvalid):  # type: ignore[misc]
    """A call that its caller has to change: the one status of gRPC for which Flight has no error of its own.

    Trap: Flight sends the traceback of any other exception with it, and so the paths and the code of the server.  It
    sends the name of the class in its place if Python cannot write the traceback, which asks for the cause first.

    Limit: that name is all that can be kept from a client of another make: Arrow adds it to each error that is not one
    of Flight's own, and none of these has the status of a wrong call (INVALID_ARGUMENT), by which drivers tell them.
    """

    @property
    def __cause__(self) -> BaseException | None:
        raise AttributeError("a client is sent no traceback")


def as_flight(error: BaseException, *, ours: bool) -> Any:
    """Return what a server raises in the place of ``error``; ``ours``: for a client of ours."""
    if not isinstance(error, StrandlineError):
        return flight.FlightInternalError(f"Strandline has failed: {first_line(error)}")
    if ours:
        return flight.FlightServerError(str(error), extra_info=msgspec.json.encode(_said(error)))
    match error:
        case DefinitionError() | InvalidUsage() | AsOfError():
            return Refused(str(error))
        case Unavailable():
            return flight.FlightUnavailableError(str(error))
        case _:
            return flight.FlightServerError(str(error))


def _said(error: StrandlineError) -> Said:
    kind = type(error).__name__
    match error:
        case DefinitionError(message=message, position=position):
            at = Position(0, 0) if position is None else position
            return Said("DefinitionError", message, at.line, at.column)
        case CollectionError(message=message, errors=rows, since=since):
            shown = [{key: None if value is None else str(value) for key, value in row.items()} for row in rows]
            return Said("CollectionError", message, errors=shown, since=since)
    return Said(kind, str(error))


def as_ours(error: BaseException, server: str) -> StrandlineError:
    """Return the error of ours that a call has ended with; ``server``: what was called."""
    try:
        said = msgspec.json.decode(getattr(error, "extra_info", b"") or b"null", type=Said | None)
    except msgspec.MsgspecError:
        said = None
    if said is not None:
        return _meant(said)
    text = spoken(error)
    match error:
        case flight.FlightTimedOutError():
            return Silent(f"{server} does not answer in time")
        case flight.FlightUnavailableError():
            return _unreached(text, server)
        case flight.FlightUnauthenticatedError() | flight.FlightUnauthorizedError():
            return ConfigError(f"{server} does not let this process in: {text}")
        case pa.ArrowInvalid():
            return InvalidUsage(f"{server}: {text}")
    return Unavailable(f"{server}: {text}")


def _unreached(text: str, server: str) -> StrandlineError:
    """Return why there is no connection, of which gRPC says all that it went through; ``text``: its words."""
    for sign, why in _WRONG:
        if sign in text:
            return ConfigError(f"{server} {why}")
    if any(sign in text for sign in ("Connection refused", "No such file or directory")):
        return Unavailable(f"{server} does not answer: nothing listens there; is `strandline run` running?")
    if any(sign in text for sign in ("Socket closed", "Connection reset")):
        return Unavailable(f"{server} has cut the connection: it has ended, or wants TLS (grpc+tls://…)")
    return Unavailable(f"{server} does not answer: {_ADDRESSED.sub('', text.rpartition('last error: ')[2])}")


_ADDRESSED: Final = re.compile(r"^[A-Z_]+: (?:ipv4|ipv6|unix):\S*: ")
"""The status and the address with which gRPC begins."""
_WRONG: Final = (
    ("wrong version number", "serves without TLS: connect to its address as grpc+tcp://…"),
    ("certificate verify failed", "shows a certificate that this process does not trust: name its `authority`"),
    ("Peer name", "shows a certificate for another name: connect to the name that its certificate has"),
    ("Hostname Verification", "shows a certificate for another name: connect to the name that its certificate has"),
)
"""What settings have to change, by what gRPC says of it."""


def _meant(said: Said) -> StrandlineError:
    match said.kind:
        case "DefinitionError":
            return DefinitionError(said.message, Position(said.line, said.column) if said.line else None)
        case "CollectionError":
            return CollectionError(said.message, said.errors, said.since)
        case "FencedError":
            return FencedError(said.message)
    kind = getattr(errors, said.kind, Unavailable)
    simple = isinstance(kind, type) and issubclass(kind, StrandlineError)
    return kind(said.message) if simple else Unavailable(said.message)


def unserved(place: str, error: BaseException) -> ConfigError:
    """Return why nothing can listen at ``place``, of which gRPC says nothing: the address, or what TLS needs."""
    scheme, _, at = place.partition("://")
    why = first_line(error).removeprefix("Unknown error: ")
    if scheme == "grpc+tls":
        why = "its certificate and its key cannot be used, or not together (`serve_certificate`, `serve_key`)"
    if scheme != "grpc+unix":
        why = cannot_listen(Address.parse(at).local, why)
    return ConfigError(f"cannot serve at {place}: {why}")
