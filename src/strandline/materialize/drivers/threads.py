"""Blocking calls of a client library, made in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from strandline.materialize.protocol.task import SPLITS_MAX

T = TypeVar("T")

_THREADS: Final = ThreadPoolExecutor(4 * SPLITS_MAX, thread_name_prefix="endpoint")
"""Threads of their own: endpoints that do not answer must not keep the log, or other endpoints, waiting."""


async def to_its_end(call: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Return what ``call`` returns, made in a thread; if this is cancelled, once the thread has come to its end.

    So when a session is closed, nothing of it can still be committed.  ``stop``: called if this is cancelled, to have
    the thread end sooner.
    """
    future = asyncio.get_running_loop().run_in_executor(_THREADS, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([future])
        future.exception()  # which no caller waits for
        raise
