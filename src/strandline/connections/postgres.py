"""A connection to a PostgreSQL database: its options, the parameters that libpq gets of them, and a login to try them.

Source: libpq's connection parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from strandline import extras
from strandline.connections.addresses import SECRET, Address
from strandline.connections.logins import LOGIN_SECONDS_MAX, Login, Refused, Unanswered, user, values
from strandline.errors import first_line
from strandline.options import PLACE, Kind, one_of, option
from strandline.store.postgres_forms import FORMS
from strandline.store.secret import Secret

NAME_BYTES_MAX: Final = 63
"""PostgreSQL truncates longer names, so that two names could become one."""
SHUT_OUT: Final = re.compile(
    r"authentication failed|no password supplied|not permitted to log in|no pg_hba\.conf entry"
    r"|permission denied for database|(?:role|database) .* does not exist"
)
"""What the server says of a login that it refuses; the client library tells no code of it."""


class Tls(Enum):
    """How a connection is encrypted: libpq's ``sslmode``."""

    DISABLE = "disable"
    ALLOW = "allow"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise ValueError("it must be a port, 1 to 65535")
    return int(text)


PORT: Final = Kind(_port, {"pattern": r"^\d+$"})


@dataclass(frozen=True, kw_only=True)
class PostgresConnection:
    """How to reach a database: the options of CREATE CONNECTION … TO POSTGRES."""

    host: str = option(PLACE, "The server's host, or the directory of its socket.", default="localhost")
    port: int = option(PORT, "The server's port.", default="5432")
    database: str = option(PLACE, "The database.", default="postgres")
    user: str = option(
        PLACE,
        "Who logs in: to read, a role with REPLICATION that may read the tables; to write, one that may create them.",
    )
    password: Secret | None = option(SECRET, "The password, by reference; without it, none is given.", default=None)
    sslmode: Tls = option(
        one_of(Tls), "How the connection is encrypted, and whose server is trusted.", default="prefer"
    )
    sslrootcert: str | None = option(
        PLACE, "The file with the certificates to trust; without it, libpq's own.", default=None
    )
    sslcert: str | None = option(PLACE, "The file with the client's own certificate.", default=None)
    sslkey: str | None = option(PLACE, "The file with its private key.", default=None)
    sslpassword: Secret | None = option(SECRET, "The password of that key, by reference.", default=None)

    @property
    def place(self) -> str:
        """What to call the database in a message."""
        return f"PostgreSQL ({self.host}:{self.port}/{self.database})"

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`."""
        inside = f"{self.host}/.s.PGSQL.{self.port}"
        return (Address(inside) if self.host.startswith("/") else Address(self.host, self.port),)

    def login(self) -> Login:
        """See `LogsIn`."""
        given = values(self, PostgresConnection)
        return Login(self.place, user(self.user), given, self.addresses(), extras.POSTGRES, partial(_log_in, self))

    def parameters(self, settings: Mapping[str, str]) -> Mapping[str, Any]:
        """Return libpq's parameters; ``settings`` are the session's own, beside `FORMS`."""
        given = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "sslmode": self.sslmode.value,
            "application_name": "strandline",
            "connect_timeout": 10,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "tcp_user_timeout": 30_000,
            "options": " ".join(f"-c {name}={text}" for name, text in {**FORMS, **settings}.items()),
        }
        for name in ("password", "sslpassword"):
            if (secret := getattr(self, name)) is not None:
                given[name] = secret.reveal()
        for name in ("sslrootcert", "sslcert", "sslkey"):
            if (file := getattr(self, name)) is not None:
                given[name] = file
        return given


def _log_in(at: PostgresConnection) -> Refused | Unanswered | None:
    import psycopg

    settings = {"statement_timeout": f"{LOGIN_SECONDS_MAX}s"}
    try:
        with psycopg.connect(**{**at.parameters(settings), "connect_timeout": LOGIN_SECONDS_MAX}) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        said = first_line(error)
        return (Refused if SHUT_OUT.search(said) else Unanswered)(said)
    return None
