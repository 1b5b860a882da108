"""The line of calls: what a client was asked and has not done yet, in order; one of those who wait does it.

Nothing runs by itself.  Whoever awaits a `Call` drives the line until that one is done; who comes second waits, and
takes over if the first one is cancelled.  Calls of one collection that stand next to each other are done in one *run*.

A refusal is told to who awaits its call; what nobody awaited is told to who stops the client.

A run that raises stands at the head of the line: whoever drives next tries the very same run again, before anything
behind it.  So calls are never skipped, and never overtake each other.

Source: design page "persist" (the stream client; effects follow call order).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, Protocol, TypeVar

from strandline.errors import FencedError, Stopped, StrandlineError
from strandline.store.clock import Clock

S = TypeVar("S")

RUN_CALLS_MAX: Final = 256
"""How many calls share one commit at most."""
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05
"""How long the second who awaits sleeps before it looks again."""
assert PAUSE_S_MIN <= PAUSE_S_MAX
UNTOLD_MAX: Final = 64
"""How many refusals are kept for who stops the client, the newest: a program may never await what it knows is late."""


class Call(Generic[S]):
    """Something asked of a client: ``step``.  Awaiting it returns when it is done and durable; it may be awaited again.

    Raises:
        InvalidUsage: it is refused, for good: it writes at a time that is sealed, or what the codec does not take.
        DefinitionError: it is refused, for good: the collection's schema has a type that cannot be kept.
        FencedError: a newer epoch has taken over.
        Indeterminate: it may have happened, or may yet; await it again to learn.
        Unavailable: it did not happen yet; await it again to try.
    """

    def __init__(self, line: Line, run: Callable[[list[Call[S]]], Run], step: S) -> None:
        self.run = run
        self.step = step
        self.done = False
        self.refusal: StrandlineError | None = None
        self._line = line

    def __await__(self) -> Generator[Any, Any, None]:
        return self._line.drive(self).__await__()

    def settle(self, refusal: StrandlineError | None = None) -> None:
        """Take note of its outcome."""
        self.done = True
        self.refusal = refusal
        if refusal is not None:
            self._line.refused(self)


class Run(Protocol):
    """Calls that share a commit."""

    async def go(self) -> None:
        """Settle them all, or raise and be tried again."""
        ...


class Line:
    """The calls of a client and its clones, in order; one of those who await drives it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[Call[Any]] = deque()
        self._run: Run | None = None
        self._driven = False
        self._untold: deque[Call[Any]] = deque(maxlen=UNTOLD_MAX)
        self.stopped = False
        self.clones = 1

    def enqueue(self, call: Call[S]) -> Call[S]:
        """Take a call.  Raises `Stopped`."""
        if self.stopped:
            raise Stopped("this stream client was stopped: it takes no new calls")
        self._calls.append(call)
        return call

    async def drive(self, call: Call[Any] | None = None) -> None:
        """Do what is in line until ``call`` is done (None: everything), and raise its refusal."""
        pause = PAUSE_S_MIN
        while not (call.done if call is not None else self._idle):
            if self._driven:
                await self._clock.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
                continue
            self._driven = True
            try:
                if self._run is None:
                    self._run = self._next()
                await self._run.go()
                self._run = None
            finally:
                self._driven = False
        if call is not None and call.refusal is not None:
            if call in self._untold:
                self._untold.remove(call)
            raise call.refusal

    async def finish(self) -> None:
        """Do everything that is in line; raise one of the refusals that nobody was told: having been fenced, if so."""
        await self.drive()
        refusals = [call.refusal for call in self._untold if call.refusal is not None]
        self._untold.clear()
        if refusals:
            first = next((error for error in refusals if isinstance(error, FencedError)), refusals[0])
            if len(refusals) > 1:
                first.add_note(f"{len(refusals)} calls that nobody awaited were refused; this is one of them")
            raise first

    def refused(self, call: Call[Any]) -> None:
        """Remember that a call was refused, until somebody is told."""
        self._untold.append(call)

    @property
    def _idle(self) -> bool:
        return self._run is None and not self._calls

    def _next(self) -> Run:
        together = [self._calls.popleft()]
        while self._calls and self._calls[0].run == together[0].run and len(together) < RUN_CALLS_MAX:
            together.append(self._calls.popleft())
        return together[0].run(together)
