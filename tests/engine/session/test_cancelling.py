"""A call to Spark that is cancelled ends, whenever its jobs begin."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from strandline.engine.session.cancelling import Cancellable


class Spark:
    """A context of Spark: which threads carry which tag, and a job that ends when its tag is cancelled."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.job: str | None = None
        self.cancelled = threading.Event()
        self.asked = threading.Semaphore(0)

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - as Spark calls it
        """Have the jobs of this thread carry a tag."""
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - as Spark calls it
        """Have them carry it no longer."""
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - as Spark calls it
        """Cancel the jobs that run now."""
        if self.job == tag:
            self.cancelled.set()
        self.asked.release()


def test_a_call_is_cancelled_that_has_no_job_yet() -> None:
    """Damage: a query is cancelled while Spark still plans it, and then runs for hours."""
    spark = Spark()

    def call() -> str:
        assert spark.asked.acquire(timeout=120)  # cancelled while it was planned
        (spark.job,) = spark.tags
        assert spark.cancelled.wait(120)
        return "ended"

    made, ended = Cancellable(cast("Any", SimpleNamespace(sparkContext=spark)), "mine", call), []
    running = threading.Thread(target=lambda: ended.append(made()))  # noqa: TID251 - as a worker of the engine
    running.start()
    made.cancel()
    running.join(120)
    assert ended == ["ended"]
    assert spark.tags == []
