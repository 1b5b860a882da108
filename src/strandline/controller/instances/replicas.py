"""The replicas of one instance: what they are to run, and how far they are together.

Each replica obeys the same commands.  What they write are the same facts, so an export is as far as the furthest of
them; what one of them must still be able to read, all must.  A replica that is away is not waited for: whatever another
one does is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from strandline.controller.instances.asked import Asked
from strandline.controller.instances.history import History
from strandline.controller.instances.link import Link
from strandline.frontier.antichain import EMPTY, MINIMUM, Frontier, join, meet
from strandline.instance.commands import Advance, RunDataflow, RunIndex, RunIngestion, RunMaterialization, exports_of
from strandline.instance.protocol.carrier import Dial
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    Command,
    Create,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Reconciled,
    Schedule,
)
from strandline.persist.shard.patience import Deadline
from strandline.store.beside import Beside
from strandline.store.clock import Clock

LOOK_S: Final = 0.02
"""How often several replicas are looked at in turn, while one of them is waited for."""
CONNECTING_S: Final = 5.0
"""How long a tick waits for a replica that is not connected yet."""

Placeable = RunDataflow | RunIngestion | RunMaterialization | RunIndex


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a replica is: its address, why it does not obey (empty: it does), its incarnation, what it kept of what ran.

    ``reused``, ``replaced`` (by reason), ``dropped`` and ``created`` are of the last connection.
    """

    address: str
    problem: str = ""
    incarnation: str = ""
    reused: int = 0
    replaced: dict[str, int] = {}
    dropped: int = 0
    created: int = 0


class Replicas:
    """The replicas of one instance, by name, and what they run."""

    def __init__(
        self, name: str, hello: Hello, dial: Dial, beside: Beside, clock: Clock, reported: Callable[[], None]
    ) -> None:
        """``reported`` is called whenever a replica has said how something stands."""
        self.name = name
        self._reported = reported
        self.links: dict[str, Link] = {}
        self._hello = hello
        self._dial = dial
        self._beside = beside
        self._clock = clock
        self._history = History()
        self._runs: dict[str, Create] = {}
        self._turn = 0
        self._time = MINIMUM  # where everything was brought to last
        self._asked = Asked(self._history, self._say, lambda: self.obeying)

    async def follow(self, addresses: Mapping[str, str]) -> None:
        """Have these be the replicas: connect to those that are new, and leave those that are not among them."""
        for name in [name for name, link in self.links.items() if addresses.get(name) != link.address]:
            await self.links.pop(name).close()
        for name, address in addresses.items():
            if name not in self.links:
                self.links[name] = Link(
                    address,
                    self._dial,
                    self._beside,
                    self._clock,
                    self._everything(name),
                    self._asked.answered,
                    self._reported,
                )

    def _everything(self, replica: str) -> Callable[[], list[Command]]:
        def said() -> list[Command]:
            rest = self._history.reduced()
            before = [each for each in rest if not isinstance(each, Advance)]
            after = [each for each in rest if isinstance(each, Advance)]
            return [self._hello, CreateInstance(self.name, replica), *before, InitializationComplete(), *after]

        return said

    async def peek(self, peek: Peek, deadline: Deadline) -> bytes | None:
        """Return the rows that the first replica to answer finds; None if none answers by the deadline; see `Asked`."""
        return await self._asked.ask(peek, deadline)

    # ---- what runs ---------------------------------------------------------------------------------------------------

    def runs(self, name: str) -> bool:
        """Return whether the replicas are to run ``name``."""
        return name in self._runs

    @property
    def names(self) -> tuple[str, ...]:
        """What the replicas are to run."""
        return tuple(self._runs)

    def start(self, name: str, what: Placeable) -> None:
        """Have ``what`` run as ``name``, in the place of what had this name."""
        wanted = Create(name, exports_of(name, what), what)
        if self._runs.get(name) == wanted:
            return
        self.stop(name)
        self._runs[name] = wanted
        for command in (wanted, Schedule(name), AllowWrites(name)):
            self._say(command)

    def stop(self, name: str) -> None:
        """Have ``name`` run no more."""
        known = self._runs.pop(name, None)
        for export in () if known is None else known.exports:
            self._say(AllowCompaction(export, EMPTY))

    def _say(self, command: Command) -> None:
        self._history.append(command)
        for link in self.links.values():
            link.say(command)

    # ---- going on ----------------------------------------------------------------------------------------------------

    async def bring(self, time: int, deadline: Deadline | None) -> bool:
        """Bring all that runs to ``time``; return whether anything has moved.

        Returns when one replica has everything there, or has said why not; or when all have that obey, or at the
        deadline.  What is late goes on.
        """
        before = self.frontiers()
        self._turn, self._time = self._turn + 1, Frontier(time)
        self._say(Advance(time, turn=self._turn))
        connecting = Deadline(self._clock, CONNECTING_S)
        looked = 0
        while not self._arrived():
            obeying = [link for link in self.links.values() if link.obeys and link.heard.advanced != self._turn]
            settling = [link for link in self.links.values() if link.settling and connecting.left_s() > 0]
            left_s = None if deadline is None else deadline.left_s()
            if not (waited := obeying or settling) or (left_s is not None and left_s <= 0):
                break
            await waited[looked % len(waited)].hear(LOOK_S if left_s is None else min(LOOK_S, left_s))
            looked += 1
        return self.frontiers() != before

    def _arrived(self) -> bool:
        """Return whether a replica has done the last `Advance`, and all that runs is beyond its time or said why."""
        if not self._done:
            return False
        frontiers, problems = self.frontiers(), self.problems()
        return all(self._time < frontiers[name] or name in problems for name in self._runs)

    # ---- reports -----------------------------------------------------------------------------------------------------

    @property
    def obeying(self) -> list[Link]:
        """The replicas that run what they are to run."""
        return [link for link in self.links.values() if link.obeys]

    def frontiers(self) -> dict[str, Frontier]:
        """Return how far each thing is that runs: as far as the furthest replica."""
        return {name: self.upper(name) for name in self._runs}

    def upper(self, name: str) -> Frontier:
        """Return how far ``name`` is: as far as the furthest replica; the minimum if it does not run."""
        heard, created = [link.heard for link in self.links.values()], self._runs.get(name)
        if created is None:
            return MINIMUM
        return meet(join((MINIMUM, *(each.upper(export) for each in heard))) for export in created.exports)

    def needed(self) -> dict[str, Frontier]:
        """Return, by shard, the time from which on some replica must be able to read it."""
        found: dict[str, Frontier] = {}
        for link in self.obeying:
            for shard, needed in link.heard.needs.items():
                found[shard] = meet((found.get(shard, needed), needed))
        return found

    def problems(self) -> dict[str, str]:
        """Return what stands in the way of each thing that runs: something that no replica is without."""
        obeying = self.obeying
        if not obeying:
            away = "; ".join(f"{name} at {link.address}: {link.trouble}" for name, link in sorted(self.links.items()))
            why = f"no replica of instance {self.name!r} is connected ({away or 'it has none'})"
            return dict.fromkeys(self._runs, why)
        first, *others = self._done or obeying
        return {
            name: why
            for name, why in first.heard.problems.items()
            if name in self._runs and all(name in link.heard.problems for link in others)
        }

    @property
    def _done(self) -> list[Link]:
        """The replicas that have done the last `Advance`: what they say is of now."""
        return [link for link in self.obeying if link.heard.advanced == self._turn]

    def going_on(self) -> dict[str, int | None]:
        """Return what is on its way to where it was brought last, and since when (milliseconds), if that is known."""
        done, problems, frontiers = self._done, self.problems(), self.frontiers()
        settled = {name for name in self._runs if self._time < frontiers[name] or (done and name in problems)}
        found: dict[str, int | None] = {}
        for link in self.obeying:
            if link.heard.advanced != self._turn:
                found |= {name: link.heard.under_way.get(name) for name in self._runs if name not in settled}
        return found

    def replicas(self) -> dict[str, ReplicaStatus]:
        """Return how each replica is, by its name."""
        found = {}
        for name, link in self.links.items():
            kept = link.heard.reconciled or Reconciled(0, {}, 0, 0)
            found[name] = ReplicaStatus(
                link.address,
                link.trouble,
                link.heard.incarnation,
                kept.reused,
                kept.replaced,
                kept.dropped,
                kept.created,
            )
        return found

    def counters(self) -> dict[str, int]:
        """Return the live counters of what runs: of the replica that counts most, where several count."""
        found: dict[str, int] = {}
        for link in self.obeying:
            for name, count in link.heard.counters.items():
                found[name] = max(count, found.get(name, 0))
        return found

    async def close(self) -> None:
        """Leave the replicas, which go on with what they run."""
        for link in self.links.values():
            await link.close()
