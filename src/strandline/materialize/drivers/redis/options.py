"""The options of a Redis endpoint.

CREATE MATERIALIZATION cache INTO redis OPTIONS (server 'redis:6379', password 'env:REDIS_PASSWORD')
AS customers KEY (id)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from strandline import extras
from strandline.connections.addresses import SECRET, Address
from strandline.connections.logins import LOGIN_SECONDS_MAX, Login, Refused, Unanswered, user
from strandline.errors import first_line
from strandline.options import COUNT, FLAG, PLACE, TEXT, one_of, option
from strandline.store.secret import Secret

PORT_DEFAULT: Final = 6379
PORT_MAX: Final = 65_535


class Form(Enum):
    """How a row is kept under its key."""

    HASH = "hash"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisEndpoint:
    """Which database, and what a row is there.

    >>> RedisEndpoint(server="r").place, RedisEndpoint(server="[::1]:7000").place
    (('r', 6379), ('::1', 7000))
    """

    server: str = option(PLACE, "`host:port`; without a port, 6379.")
    database: int = option(COUNT, "The number of the database.", default="0")
    user: str | None = option(PLACE, "Who logs in; without it, the default user.", default=None)
    password: Secret | None = option(SECRET, "The password, by reference.", default=None)
    tls: bool = option(FLAG, "Speak TLS.", default="false")
    tls_ca: str | None = option(
        PLACE, "The certificates to trust, as PEM, by reference; without it, those of this machine.", default=None
    )
    format: Form = option(
        one_of(Form),
        "How a row is kept: `hash`, a field for each column that is not NULL; `json`, a string with a JSON object.",
        default="hash",
    )
    exact: bool = option(
        FLAG,
        "Store each transaction once, also if it is replayed after a crash, and let no other session write: sums stay "
        "right. Each write is a command more.",
        default="false",
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        if self.user is not None and self.password is None:
            raise ValueError("option 'user' needs 'password'")
        if self.tls_ca is not None and not self.tls:
            raise ValueError("option 'tls_ca' needs tls = 'true'")
        if "@" in self.server:  # it may be a password, so it is not shown
            raise ValueError(
                "option 'server' is host:port, and names no one who logs in: use 'user' and 'password' 'env:…'"
            )
        if not 0 < self.place[1] <= PORT_MAX:
            raise ValueError(f"option 'server' is {self.server!r}: it must be host:port, as redis:6379")

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`."""
        return (Address(*self.place),)

    def login(self) -> Login:
        """See `LogsIn`."""
        given = (self.server, self.database, self.user, self.password, self.tls, self.tls_ca)
        who = user(None if self.password is None else self.user or "default")
        return Login(self.called, who, given, self.addresses(), extras.REDIS, partial(_log_in, self))

    @property
    def called(self) -> str:
        """What to call the server in a message."""
        return f"Redis at {self.server}"

    def parameters(self, seconds: float) -> Mapping[str, Any]:
        """Return redis-py's arguments; ``seconds``: how long an answer may take."""
        host, port = self.place
        return {
            "host": host,
            "port": port,
            "db": self.database,
            "username": self.user,
            "password": None if self.password is None else self.password.reveal(),
            "ssl": self.tls,
            "ssl_ca_data": self.tls_ca,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "client_name": "strandline",
        }

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""
        host, colon, port = self.server.rpartition(":")
        if not colon or port.endswith("]"):
            return self.server.strip("[]"), PORT_DEFAULT
        return host.strip("[]"), int(port) if port.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisResource:
    """Where a collection is."""

    table: str = option(TEXT, "What the keys of its rows begin with, before a colon; only Strandline writes them.")


def _log_in(at: RedisEndpoint) -> Refused | Unanswered | None:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    once = Retry(NoBackoff(), 0)
    try:
        with redis.Redis(**at.parameters(LOGIN_SECONDS_MAX), retry=once) as client:
            client.ping()
    except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
        return Refused(first_line(error))
    except (exceptions.RedisError, OSError) as error:
        return Unanswered(first_line(error))
    return None
