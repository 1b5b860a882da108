"""A connection to a MariaDB database: its options, the arguments that PyMySQL gets of them, and a login to try them.

Source: PyMySQL, "Connection Object"; MariaDB's documentation, "MariaDB Error Code Reference".
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from strandline import extras
from strandline.connections.addresses import SECRET, Address
from strandline.connections.logins import LOGIN_SECONDS_MAX, Login, Refused, Unanswered, user, values
from strandline.connections.postgres import PORT
from strandline.errors import ConfigError
from strandline.options import PLACE, one_of, option
from strandline.store.secret import Secret

FORMS: Final = """
sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION',
time_zone = '+00:00', character_set_client = utf8mb4, character_set_results = utf8mb4,
character_set_connection = utf8mb4, collation_connection = utf8mb4_bin, old_mode = '', sql_auto_is_null = 0,
sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0,
completion_type = 'NO_CHAIN', tx_read_only = 0
"""
"""Every setting that changes how a server writes, reads or leaves out values; each session of ours sets all of them.

An operator may set them otherwise: with another ``time_zone`` a time is moved, and with a ``sql_select_limit`` rows are
left out of what `verify` reads.
"""

DENIALS: Final = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1370, 1698})
"""What the server says if a privilege, a password or a database is missing."""


class Tls(Enum):
    """How a connection is encrypted, in the words of libpq."""

    DISABLE = "disable"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, kw_only=True)
class MariaDBConnection:
    """How to reach a database."""

    host: str = option(PLACE, "The server's host, or the path of its socket.", default="localhost")
    port: int = option(PORT, "The server's port.", default="3306")
    database: str = option(PLACE, "The database.")
    user: str = option(PLACE, "Who logs in.")
    password: Secret | None = option(SECRET, "The password, by reference; without it, none is given.", default=None)
    sslmode: Tls = option(
        one_of(Tls), "How the connection is encrypted, and whose server is trusted.", default="disable"
    )
    sslrootcert: str | None = option(
        PLACE, "The file with the certificates to trust; without it, those of this machine.", default=None
    )
    sslcert: str | None = option(PLACE, "The file with the client's own certificate.", default=None)
    sslkey: str | None = option(PLACE, "The file with its private key.", default=None)

    @property
    def place(self) -> str:
        """What to call the database in a message."""
        return f"MariaDB ({self.host}:{self.port}/{self.database})"

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`."""
        return (Address(self.host) if self.host.startswith("/") else Address(self.host, self.port),)

    def login(self) -> Login:
        """See `LogsIn`."""
        given = values(self, MariaDBConnection)
        return Login(self.place, user(self.user), given, self.addresses(), extras.MARIADB, partial(_log_in, self))

    def parameters(self, settings: str) -> Mapping[str, Any]:
        """Return PyMySQL's arguments; ``settings`` are the session's own, beside `FORMS`.

        Raises `ConfigError` if a certificate cannot be read.
        """
        where = {"unix_socket": self.host} if self.host.startswith("/") else {"host": self.host, "port": self.port}
        password = {} if self.password is None else {"password": self.password.reveal()}
        tls = {"ssl_disabled": True} if self.sslmode is Tls.DISABLE else {"ssl": self._context()}
        how = {"charset": "utf8mb4", "init_command": f"SET SESSION {settings}, {FORMS}"}
        return {"database": self.database, "user": self.user, **how, **where, **password, **tls}

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.sslrootcert)
            if self.sslcert is not None:
                context.load_cert_chain(self.sslcert, self.sslkey)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.place}: a certificate or its key cannot be read: {error}") from error
        context.check_hostname = self.sslmode is Tls.VERIFY_FULL
        context.verify_mode = ssl.CERT_NONE if self.sslmode is Tls.REQUIRE else ssl.CERT_REQUIRED
        return context


def _log_in(at: MariaDBConnection) -> Refused | Unanswered | None:
    import pymysql

    limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), LOGIN_SECONDS_MAX)
    try:
        with pymysql.connect(**at.parameters("autocommit = 1"), **limits) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (pymysql.MySQLError, OSError, struct.error) as error:
        denied = isinstance(error, pymysql.MySQLError) and error.args and error.args[0] in DENIALS
        return (Refused if denied else Unanswered)(said(error))
    return None


def said(error: Exception) -> str:
    """Return what PyMySQL says, without a code."""
    return str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
