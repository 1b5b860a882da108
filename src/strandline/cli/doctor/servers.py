"""Servers that a project reads from and pushes into, and ports that it listens at itself: by one TCP connection each.

Where the credentials can be tried (`connections.logins`), a server that answers is asked whether it lets us in.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.connections.addresses import Address, refusal
from strandline.connections.logins import Login, Refused, Unanswered
from strandline.errors import ConfigError
from strandline.extras import missing as lacking

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


def login(owners: Sequence[str], tried: Login) -> Iterator[Finding]:
    """Check that the server lets ``owners`` in; nothing is said where none answers, or the library is not there."""
    if lacking(tried.extra) or all(answers(address) for address in tried.addresses):
        return
    users = ", ".join(owners)
    try:
        outcome = tried.attempt()
    except ConfigError as error:
        yield wrong("login", f"{users}: {error}", "correct the option, or let this user read the file")
        return
    except Exception as error:  # noqa: BLE001 - of a strange server or password, and its text may show a part of one
        outcome = Unanswered(type(error).__name__)
    match outcome:
        case None:
            yield ok("login", f"{users}: {tried.place} lets {tried.who} in")
        case Refused(why):
            found = f"{users}: {tried.place} does not let {tried.who} in ({why})"
            yield wrong("login", found, "correct what the options say or refer to, or allow it there")
        case Unanswered(why):
            found = f"{users}: {tried.place} cannot be asked by {tried.who} ({why})"
            yield wrong("login", found, "see whether it is the server that the options mean, and what it logs")


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
