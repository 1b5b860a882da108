"""The queue of a client's calls, in call order; a task that awaits a call performs the calls before it.

Nothing runs in the background.  Awaiting a `Call` also performs the calls queued before it: the first task to await
*drives* the line.  A second task waits for the first, and takes over if the first is cancelled.  Adjacent calls for one
collection share one *run*.

Awaiting a refused call raises its refusal.  Stopping the client raises the refusal of a call that was never awaited.

A run that raises stays at the head of the line.  The next task to drive retries the very same run before any later
call, so calls are never skipped and never overtake each other.
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
"""How long a task sleeps, while another drives the line, before it looks again."""
assert PAUSE_S_MIN <= PAUSE_S_MAX
UNRAISED_MAX: Final = 64
"""How many refusals of calls that were never awaited are kept for `Line.finish`: the newest ones."""


class Call(Generic[S]):
    """One queued request: ``step``.  Awaiting it returns once it is done and durable; it may be awaited again.

    Raises:
        InvalidUsage: it is refused, for good: it writes at a time that is sealed, or a value that the codec refuses.
        DefinitionError: it is refused, for good: the collection's schema has a type that cannot be stored.
        FencedError: a newer epoch has taken over.
        Indeterminate: it may have happened, or may still happen; await it again to find out.
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
        """Record the outcome."""
        self.done = True
        self.refusal = refusal
        if refusal is not None:
            self._line.refused(self)


class Run(Protocol):
    """Calls that share a commit."""

    async def go(self) -> None:
        """Settle all calls; if this raises, the next task to drive the line retries it."""
        ...


class Line:
    """The calls of a client and its clones, in order; one of the awaiting tasks drives it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[Call[Any]] = deque()
        self._run: Run | None = None
        self._driven = False
        self._unraised: deque[Call[Any]] = deque(maxlen=UNRAISED_MAX)
        self.stopped = False
        self.clones = 1

    def enqueue(self, call: Call[S]) -> Call[S]:
        """Queue a call.  Raises `Stopped` if the client was stopped."""
        if self.stopped:
            raise Stopped("this stream client was stopped: it takes no new calls")
        self._calls.append(call)
        return call

    async def drive(self, call: Call[Any] | None = None) -> None:
        """Perform queued calls until ``call`` is done (None: all of them), and raise its refusal."""
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
            if call in self._unraised:
                self._unraised.remove(call)
            raise call.refusal

    async def finish(self) -> None:
        """Perform all queued calls; then raise one refusal that was not raised yet, preferably `FencedError`."""
        await self.drive()
        refusals = [call.refusal for call in self._unraised if call.refusal is not None]
        self._unraised.clear()
        if refusals:
            first = next((error for error in refusals if isinstance(error, FencedError)), refusals[0])
            if len(refusals) > 1:
                first.add_note(f"{len(refusals)} refused calls were never awaited; this is the refusal of one")
            raise first

    def refused(self, call: Call[Any]) -> None:
        """Keep the refusal of a call until a caller awaits it or stops the client."""
        self._unraised.append(call)

    @property
    def _idle(self) -> bool:
        return self._run is None and not self._calls

    def _next(self) -> Run:
        together = [self._calls.popleft()]
        while self._calls and self._calls[0].run == together[0].run and len(together) < RUN_CALLS_MAX:
            together.append(self._calls.popleft())
        return together[0].run(together)
