"""Cancelling: a blocking call to Spark, whose jobs another thread can end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from strandline.engine.session.start import cancel_jobs, tag_jobs, untag_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

AGAIN_S: Final = 0.2
"""How often the jobs of a cancelled call are cancelled: what it still plans has no job yet."""


class Cancellable(Generic[T]):
    """Called, it makes ``call``, whose jobs carry ``tag``."""

    def __init__(self, session: SparkSession, tag: str, call: Callable[[], T]) -> None:
        self._session = session
        self._tag = tag
        self._call = call
        self._ended = threading.Event()

    def __call__(self) -> T:
        """Make the call."""
        tag_jobs(self._session, self._tag)
        try:
            return self._call()
        finally:
            self._ended.set()
            untag_jobs(self._session, self._tag)

    def cancel(self) -> None:
        """Cancel what the call computes, until it has ended."""
        while not self._ended.is_set():
            cancel_jobs(self._session, self._tag)
            self._ended.wait(AGAIN_S)
