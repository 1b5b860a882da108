"""Lanes: blocking calls that must not keep their callers for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from strandline.connections.kafka import ANSWER_SECONDS_MAX
from strandline.errors import Unavailable

T = TypeVar("T")

CALL_SECONDS_MAX: Final = 2 * ANSWER_SECONDS_MAX
"""After so long its caller waits for a call no longer: some of the clients' limits are those of each of their tries."""


class Lane:
    """The blocking calls of one client: one at a time, each for a bounded time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def run(self, call: Callable[[], T], seconds: float = CALL_SECONDS_MAX) -> T:
        """Run ``call`` in a thread.

        Raises `Unavailable` if it takes longer than ``seconds``, or an earlier one has not ended.
        """
        if self._running is not None and not self._running.done():
            raise Unavailable(f"{self._name} has not answered an earlier call yet")
        running = asyncio.get_running_loop().run_in_executor(None, call)
        self._running = running
        running.add_done_callback(_seen)
        try:
            return await asyncio.wait_for(asyncio.shield(running), seconds)
        except TimeoutError:
            if running.done():
                raise
            raise Unavailable(f"{self._name} has not answered for {seconds:g} s") from None


def _seen(running: asyncio.Future[Any]) -> None:
    """Take note of the outcome of a call for which its caller waits no longer."""
    if not running.cancelled():
        running.exception()
