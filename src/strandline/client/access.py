"""Access: how plain calls reach the core, one at a time, and what they hand out.

Callers get the turn in the order in which they asked for it.  The thread that makes ticks asks again at once, and one
of Python's locks may be given to it for ever, while a program waits to insert one row.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from strandline.client.cancelling import Cancel, present
from strandline.controller.asking.housekeeping import damage
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.items import kind_of
from strandline.errors import CorruptionError, InvalidUsage, NoExecutor
from strandline.persist.handles.contents import Rows
from strandline.plane import hurried
from strandline.wiring.assemble import SparkAssembly
from strandline.wiring.loop import LoopThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Turn:
    """A context.  A thread whose turn it is may enter again."""

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._thread: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me, mine = threading.get_ident(), threading.Event()
        with self._inside:
            if self._thread in {None, me} and (self._thread == me or not self._waiting):
                self._thread = me
                self._depth += 1
                return
            self._waiting.append((me, mine))
        try:
            mine.wait()
        except BaseException:  # a signal has interrupted it
            with self._inside:
                if not mine.is_set():
                    self._waiting.remove((me, mine))
                    raise
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._inside:
            self._depth -= 1
            if self._depth:
                return
            self._thread = None
            if self._waiting:
                self._thread, waiting = self._waiting.popleft()
                self._depth = 1
                waiting.set()


T = TypeVar("T")

ATTEMPTS_MAX: Final = 4
"""How often a call is made whose executors are lost each time: as often as Spark makes a task."""


class Access:
    """The core of one open environment, for calls from any thread."""

    def __init__(self, core: Core, assembly: SparkAssembly, loop: LoopThread) -> None:
        self.core = core
        self.assembly = assembly
        self.turn = Turn()
        self._loop = loop
        self._closed = False
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()

    def run(self, call: Coroutine[Any, Any, T], cancel: Cancel | None = None) -> T:
        """Make a call, with the definitions as they are now; ``cancel`` ends it, if it only reads.

        Raises `InvalidUsage` if the environment is closed, or ``cancel`` was called.
        """
        with self.turn:
            try:
                self.refuse_closed()
                self._loop.run(self.core.look())
            except BaseException:
                call.close()  # it has not begun
                raise
            return self._named(partial(self._loop.run, call)) if cancel is None else self._ended(call, cancel)

    def computed(
        self, make: Callable[[], Coroutine[Any, Any, T]], *, jobs: bool = True, cancel: Cancel | None = None
    ) -> T:
        """Make a call for which Spark may have to run jobs, as `run`; while there is no executor, no other call waits.

        Where the last executor is lost meanwhile, the call ends, waits for others beside all calls, and is made anew:
        what raises `NoExecutor` has changed nothing.  ``jobs``: it is known to need some, so it waits before, too.
        ``cancel``: see `run`.

        Raises `NoExecutor` when the patience of the configuration is over.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            if jobs or attempt > 1:
                self.wait(self.assembly.engine.executors())
            try:
                with hurried():
                    return self.run(make(), cancel)
            except NoExecutor:
                if attempt == ATTEMPTS_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def wait(self, call: Coroutine[Any, Any, T], cancel: Cancel | None = None) -> T:
        """Make a call that only reads, and may wait for long: other calls may be made meanwhile.

        ``cancel``: None: what `ended_by` says.

        Raises `InvalidUsage` if the environment is closed, also while it waits; or if ``cancel`` is called.
        """
        cancel = present() if cancel is None else cancel
        try:
            self.refuse_closed()
        except BaseException:
            call.close()
            raise
        return self._ended(call, cancel)

    def _ended(self, call: Coroutine[Any, Any, T], cancel: Cancel) -> T:
        """Make a call that ``cancel`` ends, and Ctrl-C."""
        try:
            return self._named(partial(self._loop.run_or_end, call, cancel.by))
        except CancelledError:
            if cancel.called:
                raise cancel.error() from None
            raise InvalidUsage("this environment was closed") from None

    def _named(self, made: Callable[[], T]) -> T:
        """Make a call, and name what is damaged by its collection and not by its shard alone."""
        try:
            return made()
        except CorruptionError as error:
            raise damage(self.core, error) from error

    def soon(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have ``call`` made beside everything else, from any thread; not once this is closed."""
        if not self._closed:
            self._loop.begin(call)

    def described(self) -> str:
        """Return what is open here, from memory alone: how, and how many items of each kind there are."""
        if self._closed:
            return "closed"
        kinds = Counter(kind_of(item) for item in self.core.catalog.items.values())
        items = ", ".join(f"{many} {kind}{'' if many == 1 else 's'}" for kind, many in sorted(kinds.items()))
        how = "writes" if self.core.writing is not None else f"mode {self.core.mode.value}"
        return f"{how}; {items or 'nothing is defined'}"

    def refuse_closed(self) -> None:
        """Raise `InvalidUsage` if the environment is closed."""
        if self._closed:
            raise InvalidUsage("this environment is closed")

    def hand_out(self, rows: Rows, hold: Hold) -> DataFrame:
        """Return rows as a caller's frame; their parts are held until nothing uses it, or this is closed."""
        self._holds.add(hold)
        loop = self._loop
        return self.assembly.engine.hand_out(rows, hold.check, lambda: loop.soon(hold.give_back))

    def close(self) -> None:
        """Close the core, and release all that was opened for it; once.  Raises what an endpoint or a store raises."""
        if self.core.writing is not None:  # else Spark may not have been started
            self.assembly.engine.hasten()
        with self.turn:
            if self._closed:
                return
            self._closed = True
            for hold in list(self._holds):
                hold.close()
            try:
                if self.core.writing is not None:
                    self._loop.run(self.core.writing.running.halt())
                self._loop.quiet()
                self._loop.run(self.core.close())
            finally:
                self._loop.stop()
                self.assembly.close()
