"""Ports of this machine: why a process cannot listen at one, and which process listens there already.

The libraries that listen say little (gRPC: "Server did not start properly"), so the operating system is asked after one
of them has failed.  By then the port may be free again: the answer then names no reason.
"""

from __future__ import annotations

import errno
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

from strandline.connections.addresses import Address


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
