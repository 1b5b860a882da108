"""What a source asks its upstream, which may not answer: one question at a time, for which no tick waits long.

A question runs beside its caller (`Beside`).  The caller waits for at most an interval and then goes on with
`Unavailable`; a later call takes the answer.  So one broker that is away costs the other sources and the views an
interval, once: until upstream answers in time again, its questions are hardly waited for.

Until a question is answered no other one is begun, so threads and connections do not add up, and the source does
nothing else that concerns upstream (`Question.silence`): its reader is called by one coroutine at a time.

What was answered late is as good as what was answered at once: what lies before a frontier never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from strandline.errors import Unavailable
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import Beside, Clock, Inline, Running, utc_text

T = TypeVar("T")

LATE_PART: Final = 20
"""For this part of an interval an upstream is waited for that was late: it answers again within that, or is away."""


SILENT: Final = Problem(
    "upstream-silent",
    "its upstream has not answered since {since}, and is asked again{why}",
    Stopped.SOURCE,
    (Way("bring it back, if it is away, or wait, if this machine is busy: each tick asks again"),),
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How questions are asked, and for how many seconds their askers wait."""

    beside: Beside = Inline
    interval_s: float = 1.0


PATIENT: Final = Patience()
"""The patience of a source that stands alone: nothing waits for it."""


@dataclass(eq=False)
class _Asked(Generic[T]):
    """A question: what it is about, and what became of it once it has ended."""

    what: str
    begun_ms: int
    ended: bool = False
    took_s: float = 0.0
    answer: T | None = None
    error: Exception | None = None


class Question:
    """The questions of one source.  One coroutine at a time asks."""

    def __init__(self, clock: Clock, patience: Patience) -> None:
        self._clock = clock
        self._patience = patience
        self._asked: _Asked[Any] | None = None
        self._running: Running | None = None
        self._late = False  # whether the last question was not answered in time, if it was answered at all
        self._silent_ms: int | None = None  # since when upstream is not known to answer
        self._said = ""  # why, if it was said

    @property
    def silence(self) -> str:
        """Why nothing is to be asked of upstream but how far it is; empty while it answers."""
        if self._silent_ms is None:
            return ""
        why = f": {self._said}" if self._said else ""
        return SILENT.said(since=utc_text(self._silent_ms), why=why)

    async def ask(self, what: str, call: Callable[[], Coroutine[Any, Any, T]], *, wait: bool) -> T:
        """Return the answer to ``what``: of a call that an earlier `ask` began, or of ``call``.

        ``wait``: however long it takes; else for an interval, and hardly while upstream is late.

        Raises what the call raises, and `Unavailable` if it is not answered yet: then the next `ask` takes the answer.
        """
        asked = await self._open(wait=wait)
        if asked is None or asked.what != what:
            await self._begin(what, call, wait=wait)
        return cast("T", self._answer())

    async def tell(self, what: str, call: Callable[[], Coroutine[Any, Any, None]], *, wait: bool) -> None:
        """Make ``call``, which upstream is to know of; as `ask`, but what an earlier call came to is not of interest.

        Raises as `ask`.  If it is not answered yet, the call goes on, and its outcome is dropped.
        """
        await self._open(wait=wait)
        await self._begin(what, call, wait=wait)
        self._answer()

    async def close(self) -> None:
        """End the question that is open, if there is one."""
        running, self._asked, self._running = self._running, None, None
        if running is not None:
            await running.cancel()

    async def _open(self, *, wait: bool) -> _Asked[Any] | None:
        """Return the question that an earlier call began, once it has ended; None: there is none.

        Raises `Unavailable` if it has not.
        """
        asked, running = self._asked, self._running
        if asked is None or running is None:
            return None
        if not await running.wait(None if wait else 0):
            raise self._unanswered(asked)
        return asked if asked.ended else None  # it was cancelled with the call that waited for it

    async def _begin(self, what: str, call: Callable[[], Coroutine[Any, Any, Any]], *, wait: bool) -> None:
        asked = self._asked = _Asked[Any](what, self._clock.now_ms())
        running = self._running = self._patience.beside(partial(self._run, asked, call))
        interval_s = self._patience.interval_s
        await running.wait(None if wait else interval_s / LATE_PART if self._late else interval_s)

    async def _run(self, asked: _Asked[Any], call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            asked.answer = await call()
        except Exception as error:  # noqa: BLE001 - the call that takes the answer raises it
            asked.error = error
        asked.took_s = (self._clock.now_ms() - asked.begun_ms) / 1000
        asked.ended = True

    def _answer(self) -> Any:
        """Return what the question that was asked last came to, and be ready for the next one."""
        asked = self._asked
        assert asked is not None
        if not asked.ended:
            raise self._unanswered(asked)
        self._asked = self._running = None
        self._late = asked.took_s >= self._patience.interval_s
        if self._late and isinstance(asked.error, Unavailable):
            self._said = str(asked.error)
            raise self._unanswered(asked) from asked.error
        self._silent_ms, self._said = None, ""
        if asked.error is not None:
            raise asked.error
        return asked.answer

    def _unanswered(self, asked: _Asked[Any]) -> Unavailable:
        self._late = True
        if self._silent_ms is None:
            self._silent_ms = asked.begun_ms
        return Unavailable(self.silence)
