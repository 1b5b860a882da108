"""Addresses: the servers that options lead to, and the ports of this machine.

A caller can ask whether a server answers at an address.  No address has a user, a password or a path, so it can be
shown.  `SECRET` is the kind of an option whose value is not shown.

`refusal` says why a process cannot listen at a port of this machine, and which process listens there already.  The
libraries that listen give no reason (gRPC: "Server did not start properly"), so the operating system is asked after
one of them has failed.  By then the port may be free again: then no reason is found.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from strandline.options import Kind
from strandline.store.secret import Secret

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


SECRET: Final = Kind(Secret, {"minLength": 1}, may_refer=True)
"""A reference to a text that is not shown."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing can listen at an address.  ``taken``: another socket listens there."""

    why: str
    taken: bool = False


def refusal(address: Address) -> Refusal | None:
    """Return why no process can listen at ``address`` now; None if one can.

    The address has a port.  Port 0 stands for any free one.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and address.port:
            return Refusal(f"the port is taken{_listener(address.port)}", taken=True)
        if error.errno == errno.EADDRNOTAVAIL:
            return Refusal("it is no address of this machine")
        return Refusal(error.strerror or str(error))
    return None


def cannot_listen(address: Address, otherwise: str) -> str:
    """Return why a process failed to listen at ``address``, and what to do; ``otherwise``: the library's own reason."""
    found = refusal(address)
    if found is None:
        return otherwise
    act = "stop what listens there, or choose another port" if found.taken else "choose another address"
    return f"{found.why}; {act}"


def _listener(port: int) -> str:
    """Return which process listens at ``port``; empty if the system does not tell this user."""
    import psutil

    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f" by process {each.pid} ({psutil.Process(each.pid).name()})"
    return ""
