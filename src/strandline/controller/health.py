"""The health of an environment: why each item does not go on or what it waits for, published for other processes.

Only the process that writes meets *problems* (an item does not go on) and *notices* (nothing is wrong yet, such as a
file that is still being written).  A tick publishes them at its end and, while it runs long, what each item waits for.
Other processes, also later ones, read what it published last, in registers of the location.

It is for operators.  No code decides by it, so a store that fails to keep a register stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from strandline.controller.instances.replicas import ReplicaStatus
from strandline.controller.instances.running import Running
from strandline.controller.location.catalog import CatalogStore
from strandline.controller.location.items import Collected, SharedSource, View
from strandline.controller.standing import standing, waiting
from strandline.errors import StoreError, StrandlineError, Unavailable
from strandline.frontier import Frontier
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient
from strandline.persist.handles.register import Register
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.problem import Case, all_known_by, cases_of, joined, known_by, text_alone

PROBLEMS: Final = "problems"
CASES: Final = "cases"
"""What problems tell of, in a register of its own: processes of earlier versions read and write texts alone.

A reader takes the cases of a problem only if they tell what its text does, so those of one that is gone may stay."""
NOTICES: Final = "notices"
NOTICE_CASES: Final = "notice-cases"
"""What notices tell of, by place in their list: kept as `CASES` are, for the same reason."""
REPLICAS: Final = "replicas"
T = TypeVar("T")


class Published(Generic[T]):
    """What is published about items, by their names; ``kind`` is the type of what is published about one."""

    def __init__(self, register: Register, kind: type[T]) -> None:
        self._register = register
        # With the epoch of the environment that published it; without, as an earlier version did.
        self._decoder = msgspec.json.Decoder(tuple[int, dict[str, kind]] | dict[str, kind])  # type: ignore[valid-type]
        self._published: dict[str, T] | None = None  # what is durable for sure, published here
        self._doubtful = False  # whether a change that was sent from here may still land
        self._turns = 0

    async def read(self) -> dict[str, T]:
        """Return what was published last."""
        return self._decode(await self._register.read())[1]

    async def publish(self, found: Mapping[str, T], epoch: int, stale: Callable[[], bool] = lambda: False) -> None:
        """Let other processes read what was ``found`` under ``epoch``; publishing the same again writes nothing.

        It is not published once it is ``stale``, or a newer environment has published something.  Two coroutines may
        publish: what was published last is what is read.
        """
        wanted = dict(found)
        if wanted == self._published:
            return
        self._turns += 1
        turn, doubtful = self._turns, self._doubtful
        self._published, self._doubtful = None, True
        encoded = msgspec.json.encode((epoch, wanted), enc_hook=text_alone)

        said = False

        def change(body: bytes | None) -> bytes | None:
            nonlocal said
            known = self._decode(body)
            said = not (stale() or turn != self._turns or known[0] > epoch)
            if not said or (known == (epoch, wanted) and not doubtful):
                return None
            return encoded  # in doubt, the same again: so that what was sent before can no longer land

        with suppress(StoreError, Unavailable):  # the next tick publishes it again
            await self._register.update(change)
            if turn == self._turns:
                self._published, self._doubtful = (wanted, False) if said else (None, doubtful)

    def _decode(self, body: bytes | None) -> tuple[int, dict[str, T]]:
        found = (0, {}) if body is None else self._decoder.decode(body)
        return found if isinstance(found, tuple) else (0, found)


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
