"""The options of a webhook.

CREATE SOURCE orders (id BIGINT, total DECIMAL(10, 2))
FROM WEBHOOK (listen = '127.0.0.1:8090', path = '/orders', token = 'env:ORDERS_TOKEN', format = 'json')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product
from typing import Final, TypeAlias

from strandline.algebra.messages import MessageEncoding, MessageFormat, Metadata, check
from strandline.algebra.schema import Schema
from strandline.connections.addresses import Address
from strandline.errors import DefinitionError
from strandline.options import ANY_TEXT, CHARACTER, DURATION_MS, PLACE, TEXT, Kind, one_of, option

_UNITS: Final = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
PORT_MAX: Final = 65_535
_Address: TypeAlias = IPv4Address | IPv6Address | str
_PROOFS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Headers that hold secrets of senders."""
_OF_CSV: Final = ("delimiter", "nulls")
_INCLUDED: Final = {
    "include_offset": Metadata.OFFSET,
    "include_timestamp": Metadata.TIMESTAMP,
    "include_headers": Metadata.HEADERS,
}


class Format(Enum):
    """How the bytes of a message hold a row."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    BYTES = "bytes"


class Body(Enum):
    """How a request's body is cut into messages."""

    AUTO = "auto"
    """By its Content-Type."""
    JSON = "json"
    """A JSON value is one message, an array one for each of its elements."""
    LINES = "lines"
    """Each line that is not blank."""
    WHOLE = "whole"
    """All of it."""


def _bytes(text: str) -> int:
    digits = text.strip().rstrip("kKmMgGbB ")
    unit = text.strip()[len(digits) :].strip().lower()
    if not digits.isdecimal() or unit not in _UNITS:
        raise ValueError("it must be a number of bytes such as 65536, 512kB or 64MB")
    return int(digits) * _UNITS[unit]


SIZE: Final = Kind(_bytes, {"pattern": r"^\s*\d+\s*([kKmMgG][bB])?\s*$"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookOptions:
    """Where to listen, who may send, and what a message is.

    >>> WebhookOptions(listen="127.0.0.1:8090", path="/orders").place
    ('127.0.0.1', 8090)
    >>> WebhookOptions(listen="0.0.0.0:8090", path="/orders")
    Traceback (most recent call last):
        ...
    ValueError: listen is '0.0.0.0:8090', which others can reach: say token, certificate and certificate_key_file
    """

    listen: str = option(TEXT, "`host:port`. Where others can reach it, a token and a certificate are required.")
    path: str = option(TEXT, "The path of the source, as `/orders`: nothing else is answered.")
    token: str | None = option(
        PLACE, "What senders prove to know (`Authorization: Bearer …`), by reference.", default=None
    )
    certificate: str | None = option(TEXT, "The file of the server's certificate chain (PEM): HTTPS.", default=None)
    certificate_key_file: str | None = option(TEXT, "The file of its private key (PEM).", default=None)
    format: Format = option(one_of(Format), "How the bytes of a message hold a row.", default="json")
    body: Body = option(
        one_of(Body),
        "How a body is cut into messages. `json`: an array is a message for each element, any other value is one; "
        "`lines`: each line that is not blank; `whole`: all of it; `auto`: by Content-Type (`application/x-ndjson` and "
        "`text/csv` are lines, other types of JSON are JSON, all else is whole).",
        default="auto",
    )
    max_request: int = option(SIZE, "A larger body is refused (413).", default="1MB")
    max_waiting: int = option(
        SIZE, "While so much is acknowledged and not yet ingested, requests are refused (429).", default="64MB"
    )
    remember: int = option(
        DURATION_MS, "How long an `Idempotency-Key` is remembered (of the newest 100 000).", default="1440m"
    )
    timeout: int = option(DURATION_MS, "How long a request may take to arrive.", default="30s")
    headers: str = option(
        ANY_TEXT, "Which headers of a request are kept for `include_headers`, between commas.", default=""
    )
    include_offset: str | None = option(TEXT, "The column with the message's number.", default=None)
    include_timestamp: str | None = option(TEXT, "The column with the time when it came.", default=None)
    include_headers: str | None = option(TEXT, "The column with the request's `headers`.", default=None)
    delimiter: str | None = option(
        CHARACTER, "CSV: what is between fields (`tab` is known); without it `,`.", default=None
    )
    nulls: str | None = option(ANY_TEXT, "CSV: the token that stands for NULL besides the empty field.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        host, _ = self.place
        if not self.path.startswith("/") or not self.path.isascii() or any(sign in self.path for sign in "?# \t\r\n"):
            raise ValueError(f"path is {self.path!r}: it must begin with / and hold no space, ? or #")
        if (self.certificate is None) is not (self.certificate_key_file is None):
            raise ValueError("certificate and certificate_key_file go together")
        if not loopback(host) and (self.token is None or self.certificate is None):
            raise ValueError(
                f"listen is {self.listen!r}, which others can reach: say token, certificate and certificate_key_file"
            )
        if not 0 < self.max_request <= self.max_waiting:
            raise ValueError("max_request must be more than 0, and at most max_waiting")
        if not self.timeout:
            raise ValueError("timeout is 0: a request needs time to arrive")
        for name in self.kept_headers:
            if name in _PROOFS:
                raise ValueError(f"headers names {name!r}, which proves who sends: it must not become part of rows")
        for name in _OF_CSV:
            if getattr(self, name) is not None and self.format is not Format.CSV:
                raise ValueError(f"option {name!r} does not go with format {self.format.value!r}")

    def __repr__(self) -> str:
        return f"WebhookOptions({self.listen!r}, {self.path!r})"  # the token is a secret

    def listens(self) -> Sequence[Address]:
        """See `Listening`."""
        return (Address(*self.place),)

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > PORT_MAX:
            raise ValueError(f"listen is {self.listen!r}: it must be host:port, as 127.0.0.1:8090")
        return host.strip("[]"), int(port)

    @property
    def kept_headers(self) -> tuple[str, ...]:
        """The names of the headers that are kept, in lower case."""
        return tuple(name.strip().lower() for name in self.headers.split(",") if name.strip())

    def decoding(self) -> MessageFormat:
        """Return how messages are decoded."""
        included = {getattr(self, name): kind for name, kind in _INCLUDED.items() if getattr(self, name) is not None}
        base = MessageFormat(MessageEncoding(self.format.value), included=included)
        return MessageFormat(
            base.encoding,
            included=included,
            delimiter=self.delimiter or base.delimiter,
            null=base.null if self.nulls is None else self.nulls,
        )


def check_schema(options: WebhookOptions, schema: Schema) -> None:
    """Raise `DefinitionError` if no rows of ``schema`` can be made of such messages."""
    given = [name for each in _INCLUDED if (name := getattr(options, each)) is not None]
    if len({*given}) < len(given):
        raise DefinitionError(f"a column holds one thing of a message, and not two: {', '.join(sorted(given))}")
    check(options.decoding(), schema)


def clash(options: WebhookOptions, other: WebhookOptions) -> str:
    """Return why a source with ``options`` cannot be beside ``other``: both would listen at one address; else empty.

    >>> clash(WebhookOptions(listen="127.0.0.1:80", path="/a"), WebhookOptions(listen="localhost:80", path="/b"))
    "it listens at 'localhost:80'; give option 'listen' another port"
    """
    (host, port), (its_host, its_port) = options.place, other.place
    if port != its_port or not port:  # port 0: any that is free
        return ""
    if not any(_meet(*pair) for pair in product(_addresses(host), _addresses(its_host))):
        return ""
    return f"it listens at {other.listen!r}; give option 'listen' another port"


def _addresses(host: str) -> tuple[_Address, ...]:
    """Return the addresses of a host; its name, if only a look-up could tell."""
    if host.lower() == "localhost":
        return ip_address("127.0.0.1"), ip_address("::1")
    try:
        return (ip_address(host),)
    except ValueError:
        return (host.lower(),)


def _meet(one: _Address, other: _Address) -> bool:
    """Tell whether not both can be listened at, with one port: they are the same, or one is every one of its kind."""
    if isinstance(one, str) or isinstance(other, str) or one.version != other.version:
        return one == other
    return one == other or one.is_unspecified or other.is_unspecified


def loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``.

    >>> loopback("localhost"), loopback("127.0.0.1"), loopback("::1"), loopback("0.0.0.0"), loopback("example.org")
    (True, True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
