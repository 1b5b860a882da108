"""Cutting one TCP connection of this process from outside the library that owns it.

pyarrow gives a Flight server no way to end a call whose client hangs: its handler would wait for as long as the socket
is open.  So the server shuts the socket down, and the library sees what a cut cable looks like.
"""

from __future__ import annotations

import os
import socket
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote


def sever(peer: str, port: int) -> bool:
    """Shut down this process's connection from ``peer``, as gRPC names it, to the local ``port``.

    Return whether there was one.  The descriptor is duplicated before its ends are compared, so a descriptor that is
    closed and reused meanwhile is not cut by mistake.
    """
    import psutil

    wanted = _endpoint(peer)
    for found in psutil.Process().net_connections("tcp"):
        if not found.raddr or found.raddr.port != wanted[1] or found.laddr.port != port or found.fd < 0:
            continue
        try:
            connection = socket.socket(fileno=os.dup(found.fd))
        except OSError:
            continue  # closed meanwhile
        with connection:
            if _shut(connection, wanted, port):
                return True
    return False


def _shut(connection: socket.socket, wanted: tuple[str, int], port: int) -> bool:
    try:
        host, remote = connection.getpeername()[:2]
        if (_plain(host), remote) != wanted or connection.getsockname()[1] != port:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # cut meanwhile
    return True


def _endpoint(peer: str) -> tuple[str, int]:
    """Return host and port of a peer as gRPC names it.

    >>> _endpoint("ipv4:127.0.0.1:4000"), _endpoint("ipv6:%5B::1%5D:4000")
    (('127.0.0.1', 4000), ('::1', 4000))
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """Return an address as text; one of IPv4 in the clothes of IPv6 as one of IPv4."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
