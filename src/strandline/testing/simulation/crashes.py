"""Crashes at counted points: a proxy in front of each dependency, and a plan of where the process dies.

Every awaited call through a `Tapped` object is a *point*.  At the chosen one the plan raises `Crash` before the call or
after it, and from then on at every further call: a dead process does nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Crash(BaseException):
    """The process died.  It is not an `Exception`, so that no handler catches it and continues."""


class CrashPlan:
    """Dies at point number ``at`` (from 1; None: never), before its effect or after."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.points: list[str] = []
        self._at = at
        self.late = self._after = after

    @property
    def happened(self) -> bool:
        """Return whether the point was reached."""
        return self._at is not None and len(self.points) >= self._at

    async def through(self, label: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, or crash."""
        if self.happened:
            raise Crash(label)
        self.points.append(label)
        if not self.happened:
            return await call()
        if self._after:
            await call()
        raise Crash(label)


class Tapped:
    """Stands for ``inner``: its coroutine methods are points; what those in ``opens`` return is tapped too."""

    def __init__(self, plan: CrashPlan, label: str, inner: Any, opens: tuple[str, ...] = ()) -> None:
        self._plan = plan
        self._label = label
        self._inner = inner
        self._opens = opens

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            result = await self._plan.through(f"{self._label}.{name}", lambda: found(*args, **named))
            return Tapped(self._plan, f"{self._label}.{name}", result) if name in self._opens else result

        return call


class PausePlan(CrashPlan):
    """A zombie: it pauses before point number ``at`` until ``meanwhile`` is over, then continues."""

    def __init__(self, at: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._pause_at = at
        self._meanwhile = meanwhile

    async def through(self, label: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, perhaps much later."""
        self.points.append(label)
        if len(self.points) == self._pause_at:
            await self._meanwhile()
        return await call()
