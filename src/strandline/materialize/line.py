"""Line: a session as its runtime uses it, so that neither side ever waits for the other in a circle.

From the first message on, an answer is waited for beside the runtime (`Beside`), so a driver that has something to say
can always say it, however long the runtime sends.  A message whose work may take long is *posted*: it is sent beside
the runtime, too, and the next one waits for it.

What a driver answers unasked is not bounded by what the runtime does with it: the only large answer, `Loaded`, goes
through ``kept``, which puts its rows aside.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from strandline.errors import Unavailable
from strandline.materialize.driver import Session
from strandline.materialize.protocol.messages import Request, Response
from strandline.store.beside import Beside, Running

Kept: TypeAlias = Callable[[Response], Response]
"""Puts the rows of an answer aside, and returns the rest of it."""


class Line:
    """One session, and the one runtime that talks to it.  It raises what the session raises, at each later call."""

    def __init__(self, session: Session, beside: Beside, kept: Kept) -> None:
        self._session = session
        self._beside = beside
        self._kept = kept
        self._came: deque[Response] = deque()
        self._posted: list[Running] = []  # each waits for the one before it
        self._receiving: Running | None = None
        self._error: BaseException | None = None

    async def send(self, message: Request) -> None:
        """Send a message; return when the driver has taken it."""
        self._listen()
        if self._posted:
            await self._posted[-1].wait(None)
            self._posted.clear()
        self._check()
        await self._session.send(message)

    async def post(self, message: Request) -> None:
        """Send a message beside the caller, after those that were posted before."""
        self._listen()
        previous = self._posted[-1] if self._posted else None

        async def sent() -> None:
            if previous is not None:
                await previous.wait(None)
            try:
                if self._error is None:
                    await self._session.send(message)
            except CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - the runtime raises it, also what ends a process
                self._error = error
                if self._receiving is not None:
                    await self._receiving.cancel()  # no answer to it will come

        self._posted.append(self._beside(sent))
        await self._posted[-1].wait(0)  # without an event loop it is sent now

    async def receive(self, seconds: float | None = None) -> Response | None:
        """Return the driver's next message; None if none came within ``seconds``."""
        self._listen()
        while not self._came:
            self._check()
            assert self._receiving is not None, "an answer is waited for from the first message on"
            if not await self._receiving.wait(seconds) and seconds is not None:
                return None
        return self._came.popleft()

    async def halt(self) -> None:
        """End what goes on beside the runtime; nothing but `close` may follow."""
        self._error = self._error or Unavailable("this session was ended; the next one goes on from what is committed")
        for running in (*reversed(self._posted), *([] if self._receiving is None else [self._receiving])):
            await running.cancel()

    async def close(self) -> None:
        """End the conversation, and what is under way in it."""
        await self.halt()
        await self._session.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _listen(self) -> None:
        if self._receiving is None:
            self._receiving = self._beside(self._receive)

    async def _receive(self) -> None:
        """Receive one message, and have the next one waited for."""
        try:
            self._came.append(self._kept(await self._session.receive()))
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - see above
            self._error = error
        else:
            self._receiving = self._beside(self._receive)
