"""Logins: credentials that can be tried before anything depends on them.

To try one is to connect, to log in, and to ask one thing that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, runtime_checkable

from strandline.connections.addresses import Address

LOGIN_SECONDS_MAX: Final = 3
"""A server that says nothing for so long does not answer."""
NO_ONE: Final = "a client without a login"


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not let them in; ``why``: nothing that is secret."""

    why: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The server does not answer in time, or cannot be asked like this; ``why``: nothing that is secret."""

    why: str


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in where: ``who`` and ``place`` are what messages call them.

    ``given``: what decides whether it succeeds, so that equal ones are tried once.  ``extra``: whose library it needs.
    ``attempt`` tries it, and returns None if it succeeds.  Raises `ConfigError` if a file that it needs cannot be read.
    """

    place: str
    who: str
    given: tuple[Hashable, ...] = field(repr=False)
    addresses: Sequence[Address]
    extra: str
    attempt: Callable[[], Refused | Unanswered | None] = field(repr=False, compare=False)


@runtime_checkable
class LogsIn(Protocol):
    """Options with credentials that can be tried."""

    def login(self) -> Login:
        """Return who logs in with them."""
        ...


def values(options: object, of: type[Any]) -> tuple[Hashable, ...]:
    """Return the values that ``options`` have of the dataclass ``of``, which they may be more than."""
    return tuple(getattr(options, each.name) for each in fields(of))


def user(name: str | None) -> str:
    """Return what messages call who logs in.

    >>> user("me"), user(None)
    ("user 'me'", 'a client without a login')
    """
    return NO_ONE if name is None else f"user {name!r}"
