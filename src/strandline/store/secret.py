"""Secrets: passwords and keys as values that do not leak by accident.

The text of a `Secret` does not appear in a message, a log line, a traceback's locals or a dump of its owner, and a
`Secret` cannot be pickled.  Only `Secret.reveal` returns the text, and the code calls it only to pass the text to the
library that needs it: ``grep reveal`` finds all places.

Warning: it protects against accidents, not against code in this process that wants the text.
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
        """Return the secret text."""
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
    """Return ``options`` with all secrets revealed, for the library that needs them."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}
