"""An event loop in a thread of its own: what lets plain calls use async rooms, also where the caller owns a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from strandline.store.clock import Call, Clock

T = TypeVar("T")

ENDING_S: Final = 10.0
"""How long a call that was interrupted may take to end."""


def _ignored(_: Callable[[], object]) -> None:
    """Take no notice of how a call would be ended."""


class LoopThread:
    """Runs coroutines, one caller waiting for each.  Started when it is made; `stop` it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._running: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="strandline", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what ``call`` returns, or raise what it raises."""
        return self._begin(call).result()

    def run_or_end(self, call: Coroutine[Any, Any, T], begun: Callable[[Callable[[], object]], object] = _ignored) -> T:
        """As `run`; if this is interrupted, end the call first, and then raise that.

        ``begun``: is given what ends the call, for any other thread to call.
        """
        ended = threading.Event()

        async def made() -> T:
            try:
                return await call
            finally:
                ended.set()

        future = self._begin(made())
        begun(future.cancel)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                ended.wait(ENDING_S)
            raise

    def begin(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin ``call``, and do not wait for it; not at all once the thread has ended."""
        self.soon(lambda: self._begin(call()))

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` made in the thread, from any other; not at all once that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def repeat(self, clock: Clock, seconds: float, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Make ``call``, which raises nothing, every so many seconds until `quiet`."""

        async def forever() -> None:
            while True:
                await clock.sleep(seconds)
                await call()

        self._begin(forever())

    def quiet(self) -> None:
        """Cancel what runs: repeated calls, and calls whose caller was interrupted.  Return once all have ended.

        Each is cancelled once, so a ``finally`` that awaits comes to its end.
        """
        self.run(_cancelled())

    def _begin(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Have the thread run ``call``.  It is kept until it ends: a loop refers weakly to its tasks."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def stop(self) -> None:
        """End the thread, once nothing runs in it."""
        self.quiet()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Threads:
    """Threads for calls that block: an `Aside`.  `close` waits for those that have begun."""

    def __init__(self, many: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(many, name)

    async def __call__(self, call: Callable[[], T]) -> T:
        """See `Aside`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """End the threads; calls that have not begun are not made."""
        self._pool.shutdown(cancel_futures=True)


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Return what ``call`` returns, or raise what it raises, in a loop of its own."""
    loop = LoopThread()
    try:
        return loop.run(call)
    finally:
        loop.stop()


async def side_by_side(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the calls together; if one raises, the others are cancelled and it is raised."""
    await outcomes(calls)


async def outcomes(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls together and return what each returned; if one raises, cancel the others and raise it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class RunningTask:
    """A call that the loop runs beside its caller: see `Running`."""

    def __init__(self, clock: Clock, call: Call) -> None:
        self._clock = clock
        self._task = asyncio.get_running_loop().create_task(call())

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`."""
        if not self._task.done() and seconds != 0:
            await self._sooner(seconds)
        return self._task.done()

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _sooner(self, seconds: float | None) -> None:
        if seconds is None:
            await asyncio.wait([self._task])
            return
        passing = asyncio.get_running_loop().create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait([self._task, passing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            passing.cancel()


async def _cancelled() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
