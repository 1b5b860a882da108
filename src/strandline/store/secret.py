"""Secrets: passwords and keys as values that do not leak by accident.

A `Secret` shows nothing of itself in a message, a log line, a traceback's locals or a dump of what holds it, and cannot
be pickled.  What it holds is had by `Secret.reveal` alone, and only where it is handed to the library that
needs it: ``grep reveal`` finds all places.

Warning: it protects against accidents, not against code of this process that wants it.

Source: design page "environment" (secrets are references, never stored).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NoReturn

SHOWN: Final = "•••"


class Secret:
    """A text that is not shown.

    >>> password = Secret("hunter2")
    >>> print(password, repr(password), f"{password!s:>5}", [password])
    ••• Secret(•••)   ••• [Secret(•••)]
    >>> password.reveal()
    'hunter2'
    """

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        """Return what must not be shown."""
        return self.__value

    def __repr__(self) -> str:
        return f"Secret({SHOWN})"

    def __str__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__value.encode(), other.reveal().encode())

    def __hash__(self) -> int:
        return hash((Secret, self.__value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is neither pickled nor copied: pass on the reference to it")


def revealed(options: Mapping[str, str | Secret]) -> dict[str, str]:
    """Return ``options`` as the library that needs them takes them."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}
