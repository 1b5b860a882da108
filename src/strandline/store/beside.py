"""Calls that run beside their caller, as a protocol, so that a simulation can control them.

An event loop runs them as tasks, a simulation as actors of the same process; where there is neither, the caller that
waits for such a call makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class Aside(Protocol):
    """Makes calls that block, in threads in which nothing else is held up.  The wiring decides which."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, or raise what it raises.  Where this is cancelled, ``call`` may go on."""
        ...


class Running(Protocol):
    """A call that runs beside its caller."""

    async def wait(self, seconds: float | None) -> bool:
        """Return whether it has ended, after so many seconds at most (None: not before it has)."""
        ...

    async def cancel(self) -> None:
        """End it now; return when it has ended."""
        ...


Call: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Beside: TypeAlias = Callable[[Call], Running]
"""Begins a call that runs beside its caller.  The wiring decides how."""


class Inline:
    """A call that its caller makes itself, whenever it waits for it: a `Beside` without an event loop."""

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`; the call is made to its end, however long that takes."""
        call, self._call = self._call, None
        if call is not None:
            await call()
        return True

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        self._call = None
