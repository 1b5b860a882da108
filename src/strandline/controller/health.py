"""The health of an environment: what stands in the way of each item, or what it waits for, for people who look.

Other processes read it in registers of the location (`published.py`).  It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from strandline.controller.instances.replicas import ReplicaStatus
from strandline.controller.instances.running import Running
from strandline.controller.location.catalog import CatalogStore
from strandline.controller.location.items import Collected, SharedSource, View
from strandline.controller.published import CASES, NOTICE_CASES, NOTICES, PROBLEMS, REPLICAS, Published
from strandline.controller.standing import standing, waiting
from strandline.errors import StrandlineError
from strandline.frontier.antichain import Frontier
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient
from strandline.persist.handles.register import Register
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.problem import Case, all_known_by, cases_of, joined, known_by

MERGES = "(merges)"
"""What problems of the large merges beside ticks are noted under."""
STATUS = "(status)"
"""The same for the lists by which other processes read problems and notices."""
TICK = "(tick)"
"""What a tick that has not ended is under way as."""


class Health:
    """What is known of the items of one environment, from memory; a writer publishes it."""

    def __init__(self, client: PersistClient, catalogs: CatalogStore, problems: Problems) -> None:
        self._client = client
        self._catalogs = catalogs
        self._problems = problems
        self.published_problems = Published(Register(PROBLEMS, client.clock, client.ids, client.consensus), str)
        self.published_cases = Published(Register(CASES, client.clock, client.ids, client.consensus), tuple[Case, ...])
        self.published_notices = Published(Register(NOTICES, client.clock, client.ids, client.consensus), list[str])
        self.published_notice_cases = Published(
            Register(NOTICE_CASES, client.clock, client.ids, client.consensus), list[tuple[Case, ...]]
        )
        self.published_replicas = Published(
            Register(REPLICAS, client.clock, client.ids, client.consensus), dict[str, ReplicaStatus]
        )
        self.wrong: Mapping[str, str] = {}
        """What replicas have computed wrong, by view: the view goes on (`controller/asking/wrong_replicas.py`)."""
        self.unadded: Mapping[str, str] = {}
        """Why columns that upstreams have got cannot be added, by collection: instead of that it waits for them."""
        self._standing: dict[str, str] = {}  # what is behind the last tick without a problem of its own
        self.time: int | None = None
        """The time of the tick that runs, once it has one."""
        self.overdue: Callable[[Mapping[str, str]], None] = lambda _: None
        """Called with what a tick that runs long waits for, as often as that is looked at; must not raise or block."""

    def problems(self) -> dict[str, str]:
        """Return what stands in the way of each item, or of the transactions, by its name.

        That is what was met here since it was opened: at ticks, and when shards were compacted and collected.
        """
        owners = {TRANSACTIONS: TRANSACTIONS}
        items = self._catalogs.current.items
        for name, item in items.items():
            if isinstance(item, Collected | SharedSource):
                owners |= dict.fromkeys(item.shards, name)
        found = {name: item.distrusted for name, item in items.items() if isinstance(item, View)}
        found = {name: why for name, why in found.items() if why} | self._standing | self._problems
        found |= {name: why for name, why in self.unadded.items() if name in found}
        for name, why in self.wrong.items():
            found[name] = joined((found.get(name, ""), why))
        for shard, problem in self._client.problems().items():
            if (owner := owners.get(shard)) is not None:  # else it was dropped
                found[owner] = joined((found.get(owner, ""), f"shard {shard!r}: {problem}"))
        return found

    async def published(self) -> dict[str, str]:
        """Return the problems that were published last, as `problems` does."""
        cases = await self.published_cases.read()
        return {n: known_by(said, cases.get(n, ())) for n, said in (await self.published_problems.read()).items()}

    async def last_notices(self) -> dict[str, list[str]]:
        """Return the notices that were published last, by item."""
        cases = await self.published_notice_cases.read()
        return {
            name: all_known_by(said, cases.get(name, ()))
            for name, said in (await self.published_notices.read()).items()
        }

    async def publish(self, running: Running, epoch: int, time: int) -> None:
        """Learn what is behind the tick that ended at ``time``; let other processes read all that is known."""
        report = running.report()
        going_on = running.going_on()
        catalog, until = self._catalogs.current, Frontier(time)
        self._standing = standing(catalog, self._problems, report.frontiers, until, going_on, report.notices)
        async with self._problems.of(STATUS):
            problems = self.problems()
            if cases := {name: found for name, said in problems.items() if (found := cases_of(said))}:
                await self.published_cases.publish(cases, epoch)
            await self.published_problems.publish(problems, epoch)
            told = {name: [cases_of(each) for each in said] for name, said in report.notices.items()}
            if told := {name: cases for name, cases in told.items() if any(cases)}:
                await self.published_notice_cases.publish(told, epoch)
            await self.published_notices.publish(report.notices, epoch)
            if running.instances:
                await self.published_replicas.publish(running.replicas(), epoch)
            self._problems.note(STATUS, "")

    def waits(self, running: Running) -> dict[str, str]:
        """Return what each item waits for, once a tick, or what is done between two, runs for `problems.LONG_S`."""
        known = {name: each for name, each in self._problems.under_way.items() if name != MERGES}
        if all([each.short.left_s() > 0 for each in known.values()]):  # noqa: C419 - each looks
            return {}
        tick = known.pop(TICK, None)
        under_way = {name: since for name, since in running.under_way().items() if name not in {MERGES, TICK}}
        if tick is None or tick.short.left_s() > 0:
            return self._late(running) | waiting((), (), under_way, 0)
        items, behind = self._catalogs.current.items, set(self._catalogs.current.items)
        if self.time is not None:
            report, until = running.report(), Frontier(self.time)
            behind &= standing(self._catalogs.current, {}, report.frontiers, until, notices=report.notices).keys()
        return waiting(items, behind, under_way, tick.since_ms)

    def _late(self, running: Running) -> dict[str, str]:
        """Return what each item waits for that does not come to the last tick's time since long."""
        going_on, catalog = running.going_on(), self._catalogs.current
        if self.time is None or not any(since is not None for since in going_on.values()):
            return {}
        report, until = running.report(), Frontier(self.time)
        return standing(catalog, self._problems, report.frontiers, until, going_on, report.notices)

    async def watch(self, running: Running, epoch: int) -> None:
        """Publish what a tick that runs long waits for: beside ticks, often enough.

        Raises nothing: at the latest the end of the tick publishes problems.
        """
        if waits := self.waits(running):
            self.overdue(waits)
            with suppress(StrandlineError):
                await self.published_problems.publish(waits | self.problems(), epoch, lambda: not self.waits(running))
