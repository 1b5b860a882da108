"""Work that is dealt to all processors, in processes of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

J = TypeVar("J")
T = TypeVar("T")


def spread(make: Callable[[J], T], jobs: Sequence[J]) -> Iterator[T]:
    """Have all processors ``make`` each of ``jobs``; yield what came of them, in their order.

    ``make`` and the jobs must be picklable; what one of them raises ends the whole.  A single job is done here.
    """
    if len(jobs) <= 1:
        yield from map(make, jobs)
        return
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn")) as processes:
        try:
            yield from processes.map(make, jobs)
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise
