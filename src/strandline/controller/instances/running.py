"""What runs of an environment: in this process, and in the replicas of its instances.

The rest of the controller asks here how far things are, and what stands in the way, and need not know where they run.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from strandline.compute.tick import TickReport
from strandline.controller.instances.replicas import Placeable, Replicas, ReplicaStatus
from strandline.frontier import MINIMUM, Frontier, join, meet
from strandline.instance.beginnings import Beginning
from strandline.instance.commands import Advance, Command
from strandline.instance.instance import Instance
from strandline.instance.loop import Loop
from strandline.instance.problems import Problems
from strandline.instance.protocol.carrier import Dial
from strandline.instance.protocol.messages import Hello, Peek
from strandline.instance.reports import Report
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import Beside, Clock


@dataclass
class Running:
    """What runs ``here``, and of each instance (by name) in its replicas."""

    here: Instance
    problems: Problems
    hello: Hello
    dial: Dial
    alone: Callable[[Command], bool]
    """Whether only one replica may run what is commanded."""
    beside: Beside
    clock: Clock
    instances: dict[str, Replicas] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _aim: Advance = field(default_factory=lambda: Advance(0))
    _brought: Frontier | None = None  # where everything was brought to last
    _bringing: bool = False
    _seen: Mapping[str, object] = field(default_factory=dict)  # the frontiers that are followed already

    def __post_init__(self) -> None:
        self._late = Loop(self.beside, self._follow_late)
        self.here.follow(self._moved, self._on_their_way)

    # ---- what runs ---------------------------------------------------------------------------------------------------

    async def follow(self, instances: Mapping[str, Mapping[str, str]], writes: int) -> None:
        """Have these be the instances, each with the addresses of its replicas by name.

        ``writes``: the epoch that replicas write under.  A new one is said to all of them together, since they may
        write to the same shards.
        """
        if writes != self.hello.writes:
            self.hello = msgspec.structs.replace(self.hello, writes=writes)
            for instance in self.instances.values():
                await instance.greet(self.hello)
        for name in [name for name in self.instances if name not in instances]:
            await self.instances.pop(name).close()
        for name, addresses in instances.items():
            if name not in self.instances:
                self.instances[name] = Replicas(name, self.hello, self.dial, self.beside, self.clock, self._reported)
            await self.instances[name].follow(addresses)

    async def unopened(self, names: Collection[str], aim: Advance, deadline: Deadline) -> dict[str, str]:
        """Return, of ``names`` that are to run in replicas, why no replica is known to have opened them.

        ``aim``: of a new time.  Replicas that are not connected yet receive all that they are to run before it.
        """
        asked = [each for each in self.instances.values() if any(map(each.runs, names))]
        if asked:
            self._aim = aim
        for instance in asked:
            instance.aim(aim)
        found = {name: await each.unopened(name, deadline) for each in asked for name in names if each.runs(name)}
        return {name: why for name, why in found.items() if why}

    def runs(self, name: str) -> bool:
        """Return whether the item ``name`` is open here, or is to run in replicas."""
        return self.elsewhere(name) or self.here.runs(name)

    def elsewhere(self, name: str) -> bool:
        """Return whether the item ``name`` is to run in replicas."""
        return any(instance.runs(name) for instance in self.instances.values())

    async def start(self, name: str, command: Command, instance: str) -> None:
        """Have an item run, here or in the replicas of ``instance``; see `Instance.start`."""
        if not instance:
            await self.here.start(name, command)
        elif isinstance(command, Placeable):
            self.instances[instance].start(name, command, alone=self.alone(command))

    async def stop(self, name: str) -> None:
        """Have an item run no more, wherever it does.  Raises what an upstream or an endpoint raises."""
        await self._stop(name)
        await self.here.stop(name)

    async def end(self, commands: Mapping[str, tuple[Command, str]]) -> None:
        """Stop every item whose command is not equal to one of ``commands``, by name with its instance."""
        for name, instance in self.instances.items():
            for each in instance.names:
                command, place = commands.get(each, (None, ""))
                if place != name or command != instance.what(each):
                    await self._stop(each)
        await self.here.end({name: command for name, (command, instance) in commands.items() if not instance})

    async def _stop(self, name: str) -> None:
        for instance in self.instances.values():
            if instance.runs(name):
                instance.stop(name)
                self.problems.pop(name, None)
                self._noted.discard(name)

    async def halt(self) -> None:
        """End all turns that are under way here, and leave the replicas."""
        await self._leave()
        await self.here.halt()

    async def close(self) -> None:
        """End all that goes on here, and leave the replicas.  Raises what an upstream or an endpoint raises."""
        await self._leave()
        await self.here.close()

    async def _leave(self) -> None:
        await self._late.end()
        for instance in self.instances.values():
            await instance.close()

    # ---- going on ----------------------------------------------------------------------------------------------------

    async def ingest(self, aim: Advance, deadline: Deadline | None) -> None:
        """Bind a time at every source here, make data durable, and seal the tables; see `Instance.ingest`.

        Those of replicas follow with `maintain`.
        """
        self._aim = aim
        await self.here.ingest(aim, deadline)

    async def maintain(self, upper: Frontier, deadline: Deadline | None) -> TickReport:
        """Step every view up to ``upper``, or to where its inputs are known, wherever it runs; report what ran here.

        A view may read one that runs elsewhere, so what has moved in one place is followed in the others, until nothing
        moves.
        """
        self._brought, self._bringing = upper, True
        try:
            self._late.check()
            await self._late.end()  # it would bring things to an earlier time
            return await self._bring(upper, deadline)
        finally:
            self._bringing = False
            self._seen = self.report().frontiers if self._apart else {}

    def _reported(self) -> None:
        """Take note of what a replica has reported."""
        self._note()
        self._moved()

    def _moved(self) -> None:
        """Have followed what has moved somewhere later than a caller waited."""
        if self._apart and not self._bringing:
            self._late.wake()

    @property
    def _apart(self) -> dict[str, Replicas]:
        """The instances in which something runs."""
        return {name: instance for name, instance in self.instances.items() if instance.names}

    def _on_their_way(self) -> Iterator[str]:
        """Yield what replicas still bring to where all is brought, and have met no problem with."""
        upper = MINIMUM if self._brought is None else self._brought
        for instance in self._apart.values():
            problems = instance.problems()
            yield from (name for name, at in instance.frontiers().items() if at < upper and name not in problems)

    async def _follow_late(self) -> None:
        found = self.report().frontiers
        if self._brought is not None and not self._bringing and found != self._seen:
            self._seen = found
            await self._bring(self._brought, Deadline(self.clock, 0))
            await self.here.deliver(Deadline(self.clock, 0))

    async def _bring(self, upper: Frontier, deadline: Deadline | None) -> TickReport:
        for instance in self.instances.values():
            if not instance.names:
                instance.aim(self._aim)  # whether its replicas are there is to be known
        busy, moved = list(self._apart.values()), False
        while True:
            seen = [instance.frontiers() for instance in busy]  # a replica may move while what runs here follows
            await self.here.look()
            report = await self.here.maintain(upper, deadline)
            if moved and all(instance.complete for instance in busy) and seen == [each.frontiers() for each in busy]:
                return report
            for instance in busy:
                instance.aim(self._aim)
            for instance in busy:
                await instance.arrive(deadline)
            self._note()
            moved = seen != [instance.frontiers() for instance in busy]
            if not moved:
                return report

    @property
    def stale(self) -> bool:
        """Whether a replica obeys a newer environment."""
        return any(link.stale for instance in self.instances.values() for link in instance.links.values())

    def _note(self) -> None:
        """Take note of what stands in the way of what runs in replicas."""
        found = {name: why for each in self.instances.values() for name, why in each.problems().items()}
        for name in sorted(self._noted - found.keys()):
            self.problems.note(name, "")
        for name, why in found.items():
            self.problems.note(name, why)
        self._noted = set(found)

    async def idle(self) -> bool:
        """Return whether nothing goes on, and sources have all that upstream has, as far as that is known here."""
        known = not any(instance.ingests for instance in self.instances.values())
        return known and not self.going_on() and await self.here.idle()

    async def peek(self, instance: str, peek: Peek, deadline: Deadline) -> bytes | None:
        """Return the rows that a replica of ``instance`` finds; None if none answers; see `Replicas.peek`."""
        found = self.instances.get(instance)
        return None if found is None else await found.peek(peek, deadline)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return how far everything that runs is."""
        report = self.here.report()
        elsewhere = [instance.frontiers() for instance in self.instances.values()]
        notices = [instance.notices() for instance in self.instances.values()]
        frontiers = {**report.frontiers, **ChainMap(*elsewhere)}
        added = ChainMap(*(instance.added() for instance in self.instances.values()))
        notes = {**report.notices, **ChainMap(*notices)}
        return replace(report, frontiers=frontiers, notices=notes, added={**report.added, **added})

    def upper(self, name: str) -> Frontier:
        """Return how far the replicas that run an item have said that it is; the minimum if none has."""
        return join((MINIMUM, *(each.upper(name) for each in self.instances.values())))

    def needed(self) -> dict[str, Frontier]:
        """Return, by shard, the time from which on what runs must be able to read it."""
        found = self.here.needed()
        for instance in self.instances.values():
            for shard, needed in instance.needed().items():
                found[shard] = meet((found.get(shard, needed), needed))
        return found

    def under_way(self) -> dict[str, int]:
        """Return since when (milliseconds) something is done for an item that has not returned, by its name."""
        late = [instance.going_on() for instance in self.instances.values()]
        begun = {name: since for each in late for name, since in each.items() if since is not None}
        return begun | self.here.under_way()

    def going_on(self) -> dict[str, int | None]:
        """Return the items that are on their way to where they were last brought to; see `Instance.going_on`."""
        found = self.here.going_on()
        for instance in self.instances.values():
            found |= {name: self.problems.long_since(since) for name, since in instance.going_on().items()}
            if not self._late.resting:  # what reads it has not followed yet
                found = dict.fromkeys(name for name in instance.names if name not in self.problems) | found
        return found

    def counters(self) -> dict[str, int]:
        """Return the live counters of what runs (`instance/live.py`)."""
        return {**ChainMap(*(instance.counters() for instance in self.instances.values())), **self.here.counters()}

    def replicas(self) -> dict[str, dict[str, ReplicaStatus]]:
        """Return how the replicas of each instance are, by name."""
        return {name: instance.replicas() for name, instance in self.instances.items()}

    def beginnings(self) -> Iterable[Beginning]:
        """Return what is read or computed here for the first time, from memory alone: any thread may ask."""
        return self.here.beginnings()
