"""Jobs of a thread: what they carry, which pool they wait in, and how another thread cancels them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

QUERIES: Final = "queries"
"""The pool of the jobs of queries (``pools.xml``)."""
POOL_KEY: Final = "spark.scheduler.pool"


def tag_jobs(session: SparkSession, tag: str) -> None:
    """Have the jobs that this thread begins carry ``tag``, if Spark still runs."""
    with suppress(Exception):  # whatever Spark cannot do now, the next job meets
        session.sparkContext.addJobTag(tag)


def untag_jobs(session: SparkSession, tag: str) -> None:
    """Have the jobs that this thread begins carry ``tag`` no longer, if Spark still runs."""
    with suppress(Exception):  # whatever Spark cannot do now, the next job meets
        session.sparkContext.removeJobTag(tag)


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the jobs that carry ``tag``, if Spark still runs."""
    with suppress(Exception):  # at worst, they come to their end
        session.sparkContext.cancelJobsWithTag(tag)


def jobs_of_queries(session: SparkSession, tag: str) -> None:
    """As `tag_jobs`, of a thread that computes for queries alone."""
    tag_jobs(session, tag)
    with suppress(Exception):
        session.sparkContext.setLocalProperty(POOL_KEY, QUERIES)


class Cancellable(Generic[T]):
    """Called, it makes ``call``, whose jobs are a group of their own; ``text`` describes them in Spark's own pages.

    ``group``: no other call's.
    """

    def __init__(self, session: SparkSession, group: str, text: str, call: Callable[[], T]) -> None:
        self._context: Any = session.sparkContext
        self._group = group
        self._text = text
        self._call = call

    def __call__(self) -> T:
        """Make the call; the jobs of one that was cancelled before fail."""
        with suppress(Exception):  # whatever Spark cannot do now, the next job meets
            self._context.setJobGroup(self._group, self._text, interruptOnCancel=True)
        try:
            return self._call()
        finally:
            with suppress(Exception):
                self._context._jsc.clearJobGroup()  # noqa: SLF001 - PySpark has no call for that

    def cancel(self) -> None:
        """Cancel the jobs of the call, with the threads of their tasks interrupted, and those that it would begin."""
        with suppress(Exception):  # at worst, they come to their end
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)  # noqa: SLF001 - as above
