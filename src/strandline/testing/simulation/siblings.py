"""Siblings: the coroutines of one actor that go on concurrently, as calls of one process do."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from strandline.store.unreliable import Choose
from strandline.testing.simulation.kernel import Acting, Crashed, IoPoint, bury


class SideBySide:
    """Runs the coroutines of one actor concurrently, as a process does; the run chooses whose I/O is next.

    If one of them raises, the others are cancelled, and the error is raised.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    async def __call__(self, calls: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Return when all have ended."""
        await _Interleaved(list(calls), self._choose)


class _Interleaved:
    def __init__(self, calls: list[Acting], choose: Choose) -> None:
        self._calls = calls
        self._choose = choose

    def __await__(self) -> Generator[IoPoint[Any], Any, None]:
        waiting: list[tuple[Acting, IoPoint[Any]]] = []
        try:
            for call in self._calls:
                _go_on(call, None, None, waiting)
            while waiting:
                call, point = waiting.pop(self._choose("sibling", len(waiting)) if len(waiting) > 1 else 0)
                reply, error = yield from _replied(point)
                _go_on(call, reply, error, waiting)
        except Crashed:
            for call in self._calls:
                bury(call)
            raise
        except Exception:
            for call, _ in waiting:
                yield from _cancelled(call)
            raise


def _replied(point: IoPoint[Any]) -> Generator[IoPoint[Any], Any, tuple[object, Exception | None]]:
    try:
        reply = yield point
    except Exception as error:  # noqa: BLE001  # the error belongs to the coroutine that waited
        return None, error
    return reply, None


def _go_on(
    call: Acting, reply: object, error: BaseException | None, waiting: list[tuple[Acting, IoPoint[Any]]]
) -> None:
    """Run ``call`` up to its next I/O, which is added to ``waiting``, or to its end."""
    try:
        point = call.send(reply) if error is None else call.throw(error)
    except StopIteration:
        return
    waiting.append((call, point))


def _cancelled(call: Acting) -> Generator[IoPoint[Any], Any, None]:
    """Cancel ``call`` and let it clean up; errors of the cleanup are dropped, as in a task group."""
    waiting: list[tuple[Acting, IoPoint[Any]]] = []
    try:
        _go_on(call, None, CancelledError(), waiting)
        while waiting:
            reply, error = yield from _replied(waiting.pop()[1])
            _go_on(call, reply, error, waiting)
    except (Exception, CancelledError):  # noqa: BLE001  # the first failure is raised
        return
