"""Upkeep: maintenance that a commit makes due; the committer runs it, and its failures never fail the commit.

A *job* checks what is due and does it; it returns False if it postponed even the check.  An error of a job is noted
(`Upkeep.problems`, `Metrics.upkeep_failures`) and not raised: the commit is durable, and an error would suggest that it
failed.  The caller might then write the same rows again, or delete what the shard names.

If a job fails because of a store, the next commit retries it.  A job that failed for any other reason (a damaged part,
a job that Spark cannot run) would fail again and take time at every commit, so the next 1, 2, 4, … commits skip it,
`LEFT_OUT_MAX` at most.  It resumes by itself once its cause is gone.

Trap: a failed assertion is a bug, in Strandline or in the test that observes it, so it is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from strandline.errors import StoreError, Unavailable
from strandline.persist.shard.metrics import Metrics

LEFT_OUT_MAX: Final = 512
"""The most commits in a row that skip a job which keeps failing."""

Job: TypeAlias = Callable[[], Awaitable[bool]]


class Upkeep:
    """The jobs of one shard in one process, by name, in the order in which they run."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._failures: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        self._running = False
        self.problems: dict[str, str] = {}
        """The last error of each failing job, by its name."""

    def add(self, name: str, job: Job) -> None:
        """Add ``job``, unless there is one of that name."""
        self._jobs.setdefault(name, job)

    async def run(self) -> None:
        """Run the jobs.  The jobs' own commits start no further run: the next commit does what they make due."""
        if self._running:
            return
        self._running = True
        try:
            for name, job in list(self._jobs.items()):  # a writer that is opened meanwhile adds jobs
                await self.do(name, job)
        finally:
            self._running = False

    async def do(self, name: str, job: Job) -> None:
        """Run ``job``, unless it must be skipped after recent failures; its errors are noted."""
        if self._left_out.get(name):
            self._left_out[name] -= 1
        else:
            await self._try(name, job)

    async def _try(self, name: str, job: Job) -> None:
        try:
            looked = await job()
        except AssertionError:
            raise
        except (StoreError, Unavailable) as error:
            self._note(name, error)
        except Exception as error:  # noqa: BLE001  # the commit is durable, whatever the error
            self._note(name, error)
            self._failures[name] = self._failures.get(name, 0) + 1
            self._left_out[name] = min(LEFT_OUT_MAX, 2 ** (self._failures[name] - 1))
        else:
            if looked:
                self._failures.pop(name, None)
                self.problems.pop(name, None)

    def _note(self, name: str, error: Exception) -> None:
        self._metrics.upkeep_failures += 1
        self.problems[name] = str(error) or type(error).__name__
