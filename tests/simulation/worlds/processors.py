"""Work that is dealt to all processors, in processes of its own."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, TypeVar

J = TypeVar("J")
T = TypeVar("T")

GARBAGE: Final = (100_000, 20, 50)
"""When Python looks for cycles in such a process, as `gc.set_threshold` takes it.  What a history leaves is small and
dies with it; Python's own 700 would have it look through all of a history again and again: an eighth of the time."""


def spread(make: Callable[[J], T], jobs: Sequence[J]) -> Iterator[T]:
    """Have all processors ``make`` each of ``jobs``; yield what came of them, in their order.

    ``make`` and the jobs must be picklable; what one of them raises ends the whole.  A single job is done here.
    """
    if len(jobs) <= 1:
        yield from map(make, jobs)
        return
    with ProcessPoolExecutor(
        max_workers=os.cpu_count(), mp_context=get_context("spawn"), initializer=gc.set_threshold, initargs=GARBAGE
    ) as processes:
        try:
            yield from processes.map(make, jobs)
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise
