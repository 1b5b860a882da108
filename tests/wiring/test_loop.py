"""The loop thread: what it runs comes to its end, in order, before what it used is closed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from strandline.store.clock import SystemClock
from strandline.wiring.loop import LoopThread

STEPS = 5000
"""So many that the caller's thread has its turn before they are done."""


class Work:
    """A call that is interrupted while it waits, and closes what it used by calls that wait too."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.closed = 0

    async def call(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(STEPS):
                await SystemClock().sleep(0)
                self.closed += 1


@pytest.fixture
def work() -> Work:
    """Some work."""
    return Work()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """A thread that is stopped at the end."""
    loop = LoopThread()
    yield loop
    loop.stop()


def test_what_is_repeated_has_ended_before_what_it_uses_is_closed(loop: LoopThread, work: Work) -> None:
    """Damage: a merge still commits to a store that the environment has closed, or to a location it has released."""
    loop.repeat(SystemClock(), 0, work.call)
    assert work.begun.wait(120)
    gc.collect()  # a loop refers weakly to its tasks
    loop.quiet()
    assert work.closed == STEPS


def test_a_call_whose_caller_was_interrupted_closes_what_it_used(work: Work) -> None:
    """Damage: Ctrl-C leaves a lease, a session or a part behind: cancelling again and again breaks each close off."""
    loop = LoopThread()
    loop._begin(work.call())  # as `run`, without the caller that waits
    assert work.begun.wait(120)
    gc.collect()
    loop.stop()
    assert work.closed == STEPS


def test_a_thread_that_has_ended_takes_no_call() -> None:
    """Damage: the collector frees a frame after its environment was closed, and an error appears from nowhere."""
    loop = LoopThread()
    loop.stop()
    loop.soon(lambda: pytest.fail("the thread has ended"))
