"""Addresses: where the servers are that options lead to, so that a caller can ask whether one answers.

No address has a user, a password or a path: it can be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A port of a host; without a port, ``host`` is the path of a Unix socket.

    >>> str(Address("db", 5432)), str(Address("::1", 5432)), str(Address("/run/db.sock"))
    ('db:5432', '[::1]:5432', '/run/db.sock')
    """

    host: str
    port: int | None = None

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@runtime_checkable
class Reaching(Protocol):
    """Options that lead to servers."""

    def addresses(self) -> Sequence[Address]:
        """Return where these servers are; empty if the options do not say, because a library finds them itself."""
        ...


@runtime_checkable
class Listening(Protocol):
    """Options of what listens itself."""

    def listens(self) -> Sequence[Address]:
        """Return where it listens."""
        ...


def of_url(url: str | None) -> tuple[Address, ...]:
    """Return the address in a URL of HTTP; nothing for any other URL, and for none.

    >>> of_url("https://me:pw@host/path"), of_url("sqlite:///file.db")
    ((Address(host='host', port=443),), ())
    """
    try:
        parts = urlsplit(url or "")
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return ()
    return (Address(parts.hostname, port),) if parts.hostname and parts.scheme in PORTS else ()


def of_hosts(texts: str, port: int) -> tuple[Address, ...]:
    """Return the addresses in a list of hosts with commas between them; ``port``: of those that say none.

    >>> of_hosts("a:1, [::1]:2,b", 9092)
    (Address(host='a', port=1), Address(host='::1', port=2), Address(host='b', port=9092))
    """
    found = []
    for text in filter(None, (each.strip() for each in texts.split(","))):
        host, colon, number = text.rpartition(":")
        said = bool(colon) and number.isdecimal()
        found.append(Address((host if said else text).strip("[]"), int(number) if said else port))
    return tuple(found)
