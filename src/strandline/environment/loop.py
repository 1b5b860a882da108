"""An event loop in a thread of its own: what lets plain calls use async rooms, also where the caller owns a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines, one caller waiting for each.  Started when it is made; `stop` it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="strandline", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what ``call`` returns, or raise what it raises."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def stop(self) -> None:
        """End the thread; nothing may be running."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
