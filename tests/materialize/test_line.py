"""The line between a runtime and its driver: neither waits for the other in a circle, and its end is the end."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from strandline.errors import Unavailable
from strandline.materialize.driver import Answers
from strandline.materialize.protocol.messages import Acknowledge, Acknowledged, Flush, Flushed, Request, Response
from strandline.materialize.runtime import Line
from strandline.testing.doubles import HandClock
from strandline.wiring.loop import RunningTask


class Held:
    """A session that works on a message until it is let go; it says what it is at, and what it has done."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[Request] = []
        self.done: list[Request] = []
        self.answers = Answers()

    async def send(self, message: Request) -> None:
        self.begun.append(message)
        await self.gate.wait()
        self.done.append(message)

    async def receive(self) -> Response:
        return await self.answers.take()

    async def close(self) -> None:
        """Nothing is left."""


def lined(session: Held) -> Line:
    """Return a line to it."""
    return Line(session, partial(RunningTask, HandClock()), lambda response: response)


def test_posted_messages_are_sent_in_order_beside_the_runtime() -> None:
    """Damage: the runtime waits for a commit, or a message overtakes it."""

    async def body() -> None:
        session = Held()
        line = lined(session)
        posted = [Acknowledge(), Acknowledge()]
        for message in posted:
            await line.post(message)
        session.answers.put(Acknowledged())
        assert await line.receive() == Acknowledged(), "an answer is received while the driver works"
        assert len(session.begun) == 1
        session.gate.set()
        await line.send(Flush())
        assert session.done == [*posted, Flush()]
        await line.close()

    asyncio.run(body())


def test_nothing_that_was_posted_goes_on_once_a_line_has_ended() -> None:
    """Damage: a session that was closed commits later, in the middle of its successor's work."""

    async def body() -> None:
        session = Held()
        line = lined(session)
        for message in (Acknowledge(), Acknowledge()):
            await line.post(message)
        assert await line.receive(0.01) is None
        await line.close()
        session.gate.set()
        for _ in range(5):
            await asyncio.to_thread(lambda: None)
        assert session.done == []
        assert len(asyncio.all_tasks()) == 1, "only this test is left"

    asyncio.run(body())


def test_a_message_that_cannot_be_sent_ends_the_wait_for_an_answer() -> None:
    """Damage: an endpoint refuses a commit, and its task waits for the answer for ever."""

    class Broken(Held):
        async def send(self, message: Request) -> None:
            await super().send(message)
            raise Unavailable("the endpoint is away")

    async def body() -> None:
        session = Broken()
        line = lined(session)
        await line.post(Acknowledge())
        session.gate.set()
        for call in (line.receive, line.receive, lambda: line.send(Flush())):
            with pytest.raises(Unavailable, match="away"):
                await call()
        await line.close()

    asyncio.run(body())


def test_what_came_before_a_failure_is_received_first() -> None:
    """Damage: rows that are committed are taken for lost, since the connection broke after them."""

    async def body() -> None:
        session = Held()
        session.gate.set()
        line = lined(session)
        await line.send(Flush())
        session.answers.put(Flushed())
        session.answers.fail(Unavailable("the endpoint is away"))
        assert await line.receive() == Flushed()
        with pytest.raises(Unavailable, match="away"):
            await line.receive()
        await line.close()

    asyncio.run(body())
