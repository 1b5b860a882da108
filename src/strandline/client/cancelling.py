"""Cancelling: how a call is ended: by its caller from another thread, by Ctrl-C, or because a remote client has left.

gRPC says that a client has cancelled a call, or is gone, only where the server asks.  It lets Python notice Ctrl-C only
when the call is over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

from strandline.errors import InvalidUsage, StrandlineError
from strandline.instance.carriers.exchange import start_thread

T = TypeVar("T")

LOOK_S: Final = 0.2
"""How often a server looks whether the clients of the calls that it makes are there."""
LETTING_GO_S: Final = 1.0
"""How long a server may take to cancel a call before Ctrl-C is raised all the same."""


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


_present: Final[ContextVar[Cancel | None]] = ContextVar("present", default=None)


@contextmanager
def ended_by(cancel: Cancel) -> Iterator[None]:
    """Have ``cancel`` end each call that is made inside, in this thread, and that only reads: see `Access.wait`."""
    before = _present.set(cancel)
    try:
        yield
    finally:
        _present.reset(before)


def present() -> Cancel:
    """Return what ends calls that are made here; one that nothing calls, unless `ended_by` says otherwise."""
    return _present.get() or Cancel()


class Leaving:
    """The calls that a server makes now.  Calls may come from any thread; `close` it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._made: dict[object, tuple[Callable[[], bool], Cancel]] = {}
        self._closed = threading.Event()
        self._begun = False

    @contextmanager
    def watched(self, left: Callable[[], bool]) -> Iterator[None]:
        """End what is asked inside, in this thread, once ``left`` is true, which is asked inside only."""
        cancel, this = Cancel(), object()
        with self._changed:
            self._made[this] = left, cancel
            self._changed.notify()
            if not self._begun:
                self._begun = True
                start_thread(self._look, "leaving")
        try:
            with ended_by(cancel):
                yield
        finally:
            with self._changed:  # not while it is asked: what it asks is gone after this
                del self._made[this]

    def close(self) -> None:
        """Look no longer."""
        self._closed.set()
        with self._changed:
            self._changed.notify()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            with self._changed:
                self._changed.wait_for(lambda: self._made or self._closed.is_set())
                gone = [cancel for left, cancel in self._made.values() if left()]
            for cancel in gone:
                cancel()


class Outcome(Generic[T]):
    """What a call returned or raised, once it has ended: one thread makes it, and another one waits."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def make(self) -> None:
        """Make the call."""
        try:
            self._ended.put((self._call(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._ended.put((None, error))

    def result(self, seconds: float | None = None) -> T:
        """Return what was returned, or raise what was raised.  Raises `Empty` if the call goes on after ``seconds``."""
        value, error = self._ended.get(timeout=seconds)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # it is T where there is no error


def heeding_interrupts(call: Callable[[], T], end: Callable[[], object]) -> T:
    """Return what ``call`` returns, or raise what it raises; Ctrl-C calls ``end``, and is raised within a moment.

    Python gives Ctrl-C to its main thread alone, so a call from another one is made as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome = Outcome(call)
    start_thread(outcome.make, "call")
    try:
        return outcome.result()
    except KeyboardInterrupt:
        ending = Outcome(end)
        start_thread(ending.make, "ending")
        with suppress(StrandlineError, queue.Empty):  # a server that is gone computes nothing
            ending.result(LETTING_GO_S)
        raise
