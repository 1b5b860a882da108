"""Cancelling: how a caller ends a query of its own from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.errors import InvalidUsage


class Cancel:
    """Called, it ends the query that it was given to; once, at any time.  The query raises `InvalidUsage`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._way: Callable[[], object] | None = None
        self._called = False

    def __call__(self) -> None:
        """End the query, or have it ended as soon as it begins."""
        with self._lock:
            self._called = True
            way, self._way = self._way, None
        if way is not None:
            way()

    def by(self, way: Callable[[], object]) -> None:
        """Have ``way`` called, and none that was given before; at once if this was called already."""
        with self._lock:
            if not self._called:
                self._way = way
                return
        way()

    @property
    def called(self) -> bool:
        """Whether it was called."""
        return self._called

    def error(self) -> InvalidUsage:
        """Return what a query that was ended raises."""
        return InvalidUsage("the query was cancelled")
