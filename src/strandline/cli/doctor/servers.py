"""Servers that a project reads from and pushes into, and ports that it listens at itself: by one TCP connection each.

Who answers, and whether it lets us in, is not asked: only whether anything is there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.connections.addresses import Address
from strandline.connections.ports import refusal

CONNECT_SECONDS_MAX: Final = 1.0


def answers(address: Address) -> str:
    """Return why nothing answers at ``address``; empty if something does."""
    try:
        with closing(_connected(address)):
            return ""
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS_MAX:g} s"
    except OSError as error:
        return error.strerror or str(error)


def _connected(address: Address) -> socket.socket:
    if address.port is not None:
        return socket.create_connection((address.host, address.port), CONNECT_SECONDS_MAX)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONNECT_SECONDS_MAX)
        connection.connect(address.host)
    except OSError:
        connection.close()
        raise
    return connection


def server(owners: Sequence[str], address: Address, act: str = "start it, or correct its address") -> Finding:
    """Check that something answers at ``address``, which ``owners`` use."""
    users = ", ".join(owners)
    if why := answers(address):
        return missing("server", f"{users}: nothing answers at {address} ({why})", act)
    return ok("server", f"{users}: {address} answers")


def port(owner: str, address: Address, *, written: bool) -> Finding:
    """Check that ``owner`` may listen at ``address``; ``written``: a writer runs, which would be listening there."""
    found = refusal(address)
    if found is None:
        return ok("port", f"{owner}: {address} is free")
    if found.taken and written:
        return ok("port", f"{owner}: {address} is in use while a process writes the location")
    return wrong(
        "port", f"{owner}: nothing can listen at {address} ({found.why})", "stop what does, or take another port"
    )
