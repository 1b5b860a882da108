"""Answers: what a session has said and its runtime has not received yet, for drivers that live in an event loop."""

from __future__ import annotations

import asyncio
from collections import deque

from strandline.materialize.protocol.messages import Response


class Answers:
    """A queue of one sender and one receiver, in one event loop.

    It has no bound: a session answers at most what it was asked for.
    """

    def __init__(self) -> None:
        self._said: deque[Response] = deque()
        self._came = asyncio.Event()
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._said)

    def put(self, message: Response) -> None:
        """Add an answer."""
        self._said.append(message)
        self._came.set()

    def fail(self, error: Exception) -> None:
        """Have `take` raise ``error`` once all answers are taken: no more will come."""
        self._error = error
        self._came.set()

    async def take(self) -> Response:
        """Return the oldest answer, as soon as there is one.  Raises what `fail` was given."""
        while not self._said:
            if self._error is not None:
                raise self._error
            self._came.clear()
            await self._came.wait()
        return self._said.popleft()
