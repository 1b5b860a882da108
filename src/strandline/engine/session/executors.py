"""The executors of a cluster: how many cores they have, since when there are none, and what then becomes of jobs.

Spark lets a job wait for executors for ever, and says so in a warning alone.  `Executors` counts them each second, in a
thread of its own, since all others may wait for a job.  Where a job waits and there has been no executor for longer
than the patience of the configuration, it cancels the jobs of this application.  So what waits for them fails with one
sentence, and the next tick tries it again.  The jobs of a call in a hurry (`strandline.plane`) are cancelled sooner:
other callers wait for it.

The master of a standalone cluster that has forgotten the application gives it no more executors, and Spark cannot
register it again.  So the master is asked, and then the process ends for its supervisor to start it again.

It also lets queries have a partition per core.  The cores of a cluster come after the application has begun, and go and
come later; a session's number of partitions is otherwise that of the moment when it was made.

Spark on threads of this process (``local``) has neither problem, and no `Executors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from strandline.engine.session.cluster import STANDALONE, ask_masters
from strandline.engine.session.collecting import cancel_jobs, tag_jobs, untag_jobs
from strandline.errors import ExecutorsGone, NoExecutor, Unavailable
from strandline.store.clock import Clock, utc_text

PARTITIONS_MAX: Final = 200
"""More partitions than this cost a step more than they give; Spark's own number."""
DYNAMIC: Final = "spark.dynamicAllocation.enabled"
PARTITIONS: Final = "spark.sql.shuffle.partitions"
HURRY_MS: Final = 2000
"""How long the jobs of a call in a hurry wait without an executor.

One that was lost takes its results along, so a job that is begun anew loses nothing.
"""
ASK_MS: Final = 5000
"""How long after the last executor was lost the master is asked, and how often."""
WAIT_S: Final = 0.2
"""How often a call that waits for executors looks whether one was seen."""
LOOK_S: Final = 1.0
"""How often executors are counted."""
T = TypeVar("T")


class Executors:
    """The executors of the application of ``session``, once `watch` was called."""

    def __init__(
        self,
        session: SparkSession,
        clock: Clock,
        *,
        patience_s: float,
        end_s: float,
        partitions: bool = True,
        alone: bool = False,
    ) -> None:
        """``patience_s``: how long a job waits without an executor.  ``end_s``: see `require` (0: never).

        ``partitions``: whether the number of partitions follows the cores.  ``alone``: whether the application has no
        other jobs than ours.
        """
        self._session = session
        self._context: Any = session.sparkContext
        self._clock = clock
        self._patience_s = patience_s
        self._end_s = end_s
        self._partitions = partitions
        self._master = str(session.sparkContext.master)
        self._none_since: int | None = None  # when it was seen that there is none, in ms
        self._waits_since: int | None = None  # when it was seen that a job waits for one, in ms
        self._why = ""
        self._asked_at = 0  # when the master was asked why, in ms
        self._starved = False  # a job has waited longer than the patience, and no executor has come since
        self._forgotten = False  # the master no longer knows the application
        self._cancels = 0  # how often jobs were cancelled, and of which kind: what was missing then
        self._hurried_cancels = 0
        self._missing = ""
        self._alone = alone
        self._tag = ""
        self._hurried = ""
        self._ended = threading.Event()
        self._watcher = ThreadPoolExecutor(1, "strandline-executors")

    def watch(self, tag: str) -> None:
        """Begin, until `close`.  Our jobs carry ``tag``; others are a program's own."""
        self._tag, self._hurried = tag, f"{tag}-hurried"
        self.look()
        self._watcher.submit(self._watch)

    def hasten(self) -> None:
        """Let no job wait for executors from now on: this process ends, and waits for its jobs."""
        self._patience_s = 0

    def close(self) -> None:
        """End watching."""
        self._ended.set()
        self._watcher.shutdown()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()

    def carried_out(self, call: Callable[[], T], *, hurried: bool) -> T:
        """Return what a blocking call returns whose jobs are ours; ``hurried``: they wait for executors for a moment.

        Raises what it raises, and `NoExecutor` in the place of `Unavailable` if its jobs were cancelled.
        """
        before = self._cancels + (self._hurried_cancels if hurried else 0)
        tags = {self._tag, self._hurried} if hurried else {self._tag}
        with suppress(Exception):  # whatever Spark cannot do now, the next job meets
            tags -= self._context.getJobTags()
        for tag in tags:
            tag_jobs(self._session, tag)
        try:
            return call()
        except Unavailable as error:
            if self._cancels + (self._hurried_cancels if hurried else 0) > before:
                raise NoExecutor(self._missing) from error
            raise
        finally:
            for tag in tags:
                untag_jobs(self._session, tag)

    @property
    def lack(self) -> str | None:
        """What is missing, in a sentence that stays the same until an executor comes; None: jobs are carried out."""
        return self._sentence() if self._starved or self._forgotten else None

    @property
    def come_with_jobs(self) -> bool:
        """Whether there is none, and Spark will start some once a job wants them."""
        return self._none_since is not None and self._session.conf.get(DYNAMIC, "false") == "true"

    def require(self) -> None:
        """Return unless there has been none for so long that this process is to end, or none can come.

        Raises `ExecutorsGone` then.
        """
        since = self._waits_since
        if not self._end_s or self._none_since is None:
            return
        if self._forgotten:
            raise ExecutorsGone(f"{self._sentence()}; this process ends")
        if self._starved and since is not None and self._clock.now_ms() - since >= 1000 * self._end_s:
            raise ExecutorsGone(f"{self._sentence()}; this process has waited {self._end_s / 60:.3g} minutes and ends")

    async def wait(self) -> None:
        """Return when there is an executor.  Raises `NoExecutor` when the patience is over, or none can come."""
        begun = self._clock.now_ms()
        while self._none_since is not None:
            if self._forgotten or self._clock.now_ms() - begun >= 1000 * self._patience_s:
                raise NoExecutor(self._sentence())
            await self._clock.sleep(WAIT_S)

    def look(self) -> None:
        """See what executors there are.  Blocks, and raises nothing."""
        with suppress(Exception):  # the application ends, or its JVM does: `require_running` says so
            self._look()

    def _look(self) -> None:
        scheduler = self._context._jsc.sc()  # noqa: SLF001 - no public call says what follows
        if scheduler.getExecutorIds().size():
            self._none_since, self._waits_since, self._why = None, None, ""
            self._starved, self._forgotten = False, False
            if self._partitions:
                self._follow(min(int(scheduler.defaultParallelism()), PARTITIONS_MAX))
            return
        now = self._clock.now_ms()
        if self._none_since is None:
            self._none_since = self._asked_at = now
        waited = now - self._none_since
        waits = bool(self._context.statusTracker().getActiveJobsIds())
        if not self._starved:  # until an executor comes, a job that is tried again goes on waiting
            self._waits_since = (now if self._waits_since is None else self._waits_since) if waits else None
        starves = waits and self._waits_since is not None and now - self._waits_since >= 1000 * self._patience_s
        if (starves and not self._why) or now - self._asked_at >= ASK_MS:
            self._asked_at = now
            self._ask(scheduler)
        if starves:
            self._starved = True
            self._missing, self._cancels = self._sentence(), self._cancels + 1
            self._cancel()
        elif waited >= HURRY_MS:
            self._missing, self._hurried_cancels = self._sentence(), self._hurried_cancels + 1
            cancel_jobs(self._session, self._hurried)

    def _cancel(self) -> None:
        if self._alone:
            self._context.cancelAllJobs()
        else:
            cancel_jobs(self._session, self._tag)

    def _follow(self, cores: int) -> None:
        if self._session.conf.get(PARTITIONS) != str(cores):
            self._session.conf.set(PARTITIONS, str(cores))

    def _sentence(self) -> str:
        since = "it was started" if self._none_since is None else utc_text(self._none_since)
        return (
            f"Spark has had no executor since {since}, so nothing that needs a job is done: {self._why or self._master}"
        )

    def _ask(self, scheduler: Any) -> None:
        """Find out why there is none."""
        conf = scheduler.conf()
        size = (
            f"{conf.get('spark.executor.cores', 'all')} cores and {conf.get('spark.executor.memory', '1g')} of memory"
        )
        if not self._master.startswith(STANDALONE):
            self._why = f"{self._master} gives it none of {size}"
            return
        said = ask_masters(self._context)
        self._forgotten = said is not None and not said.knows
        if said is None:
            self._why = f"the master {self._master} does not answer"
        elif not said.knows:
            self._why = (
                f"the master {said.address} no longer knows the application {scheduler.applicationId()}, since it was "
                "restarted or took this process for dead; Spark cannot join it again, but a restart of this process can"
            )
        elif not said.workers:
            self._why = f"the master {said.address} has no worker"
        else:
            self._why = (
                f"no worker of the master {said.address} runs and has {size} free (an application without "
                "spark.cores.max takes all cores)"
            )
