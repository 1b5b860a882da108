"""Turn: a lock that callers get in the order in which they asked for it.

The thread that makes ticks asks again at once, and a lock of Python's may be given to it for ever, while a program
waits to insert one row.
"""

from __future__ import annotations

import threading
from collections import deque


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
