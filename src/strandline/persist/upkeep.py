"""Upkeep: what a commit made necessary besides itself, done by whoever committed, and never at its expense.

A *job* looks at what is due and does it; it returns False if it put off even looking.  Whatever it raises is noted
(`Upkeep.problems`, `Metrics.upkeep_failures`) and kept from the committer: the commit is durable, and an error would
tell the contrary.  A caller who believed it would write the same rows again, or delete what the shard names.

A job that a store failed is tried again at the next commit.  One that failed for any other reason (a damaged part, a
job that Spark cannot run) would fail again and take time at every commit, so it is left out of the next 1, 2, 4, …
commits, `LEFT_OUT_MAX` at most: once its cause is gone it goes on by itself.

Trap: a failed assertion is a bug, of ours or of whoever watches us.  It is not kept from anybody.

Source: design page "persist" (maintenance is assigned to whoever committed).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from strandline.errors import StoreError, Unavailable
from strandline.persist.metrics import Metrics

LEFT_OUT_MAX: Final = 512
"""Of how many commits in a row a job that fails and fails is left out at most."""

Job: TypeAlias = Callable[[], Awaitable[bool]]


class Upkeep:
    """The jobs of one shard in one process, by name, in the order in which they are done."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._failures: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        self._running = False
        self.problems: dict[str, str] = {}
        """Why a job was not done when it last looked, by its name."""

    def add(self, name: str, job: Job) -> None:
        """Do ``job`` too from now on, unless there is one of that name."""
        self._jobs.setdefault(name, job)

    async def run(self) -> None:
        """Do what is due.  What the jobs commit themselves makes nothing necessary that the next commit cannot do."""
        if self._running:
            return
        self._running = True
        try:
            for name, job in list(self._jobs.items()):  # whoever opens a writer meanwhile adds to them
                await self.do(name, job)
        finally:
            self._running = False

    async def do(self, name: str, job: Job) -> None:
        """Do ``job``, which is due now, unless it failed too often of late; what it raises is noted."""
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
        except Exception as error:  # noqa: BLE001  # whatever it is, the commit is done
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
