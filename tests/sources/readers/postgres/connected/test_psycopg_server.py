"""How the messages of a peek are taken from a server, over a connection in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import pytest

from strandline.errors import Unavailable
from strandline.sources.readers.postgres import psycopg_server


class Connection:
    """A connection, and its only cursor.  ``open``: a statement is under way."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.asked = 0
        self.open = False

    def cursor(self) -> Self:
        """Return the cursor."""
        return self

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        assert not self.open, "no other statement can be sent while this one sends rows"

    def stream(self, _: Any, *, binary: bool) -> Iterator[tuple[bytes]]:
        """Yield messages of a megabyte, each made when it is asked for."""
        assert binary
        self.open = True
        try:
            for _ in range(self.messages):
                self.asked += 1
                yield (bytes(1 << 20),)
        finally:
            self.open = False


def test_messages_are_given_as_they_come() -> None:
    """Damage: 5 000 changes of a megabyte are in memory at once, because they are one answer of the server."""
    connection, given, most = Connection(100), 0, 0

    def take(messages: Sequence[bytes]) -> None:
        nonlocal given, most
        most = max(most, connection.asked - given)
        given += len(messages)

    assert psycopg_server._fetched(connection, take) == given == 100  # type: ignore[arg-type]
    assert most <= (psycopg_server.BYTES_MAX >> 20) + 1


def test_a_peek_that_is_given_up_ends_its_statement() -> None:
    """Damage: the connection waits for the rest of a long answer that was given up, and cannot be used meanwhile."""
    connection = Connection(100)

    def take(_: Sequence[bytes]) -> None:
        raise Unavailable("the peek was given up")

    with pytest.raises(Unavailable):
        psycopg_server._fetched(connection, take)  # type: ignore[arg-type]
    assert (connection.open, connection.asked) == (False, (psycopg_server.BYTES_MAX >> 20) + 1)
