"""The replicas of one instance: what they are to run, how far they are together, and the peeks they are asked.

Each replica obeys the same commands.  They write the same facts, so an export is as far as the furthest of them; data
that one of them must still be able to read stays readable for all.  A replica that is away is not waited for: a result
of any replica counts.

All replicas are asked each peek, and the first answer counts.  A replica that answers with an error, or is gone, is not
waited for.  If none is left, there is no answer: the caller then reads the rows itself, which is slower and finds out
what is wrong, if anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from strandline.algebra.schema import Column
from strandline.controller.instances.history import History
from strandline.controller.instances.link import MOVES_AFTER_S, Link, Trust
from strandline.errors import InvalidUsage, ProtocolViolation, first_line
from strandline.frontier import EMPTY, MINIMUM, Frontier, join, meet
from strandline.instance import live
from strandline.instance.commands import Advance, RunDataflow, RunIndex, RunIngestion, RunMaterialization, exports_of
from strandline.instance.protocol.carrier import Dial
from strandline.instance.protocol.codec import encode
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Schedule,
)
from strandline.persist.shard.patience import Deadline
from strandline.problem import text_alone
from strandline.store.clock import Beside, Clock

ANSWER_LOOK_S: Final = 0.002
"""How often several replicas are looked at in turn, while the first answer is waited for."""


@dataclass(eq=False)
class _Question:
    """A peek that was asked: its answer, and which replicas have none.

    ``held``: answers of replicas that may not answer now, by replica and incarnation; they count once these may.
    """

    rows: bytes | None = None
    held: dict[tuple[Link, str], bytes] = field(default_factory=dict)
    without: list[Link] = field(default_factory=list)


class Asked:
    """The peeks that are open.

    The history of commands holds them, so that a replica that connects meanwhile is asked too.
    """

    def __init__(
        self, history: History, say: Callable[[Peek | CancelPeeks], None], obeying: Callable[[], Sequence[Link]]
    ) -> None:
        """``say`` sends a command to all replicas and keeps it in ``history``.  ``obeying``: those that may answer."""
        self._history = history
        self._say = say
        self._obeying = obeying
        self._open: dict[str, _Question] = {}

    async def ask(self, peek: Peek, deadline: Deadline) -> bytes | None:
        """Return the first answer to ``peek``; None if no replica has one by the deadline, or all have failed.

        If the caller is cancelled, so is the peek.
        """
        if not self._obeying():
            return None
        question = self._open[peek.uuid] = _Question()
        try:
            self._say(peek)
            await self._wait(question, deadline)
        finally:
            del self._open[peek.uuid]
            if question.rows is None:
                self._say(CancelPeeks((peek.uuid,)))
            else:
                self._history.answered(peek.uuid)
        return question.rows

    async def _wait(self, question: _Question, deadline: Deadline) -> None:
        looked = 0
        while True:
            obeying = self._obeying()
            held = [question.held.get((link, link.heard.incarnation)) for link in obeying] if question.held else []
            question.rows = next((rows for rows in (question.rows, *held) if rows is not None), None)
            waited = [link for link in obeying if link not in question.without]
            if question.rows is not None or not waited or (left_s := deadline.left_s()) <= 0:
                return
            await waited[looked % len(waited)].hear(left_s if len(waited) == 1 else min(ANSWER_LOOK_S, left_s))
            looked += 1

    def answered(self, link: Link, answer: PeekResponse) -> None:
        """Take note of an answer.

        It is ignored if its peek is not open, because it was answered or given up.  It is held if ``link`` may not
        answer: its replica is no longer trusted, or has not said yet that it runs what it is to run.
        """
        question = self._open.get(answer.uuid)
        if question is None or question.rows is not None:
            return
        if answer.rows is None:
            question.without.append(link)
        elif link in self._obeying():
            question.rows = answer.rows
        else:
            question.held[link, link.heard.incarnation] = answer.rows


LOOK_S: Final = 0.02
"""How often several replicas are looked at in turn, while one of them is waited for."""
CONNECTING_S: Final = 5.0
"""How long a tick waits for a replica that is not connected yet."""

Placeable = RunDataflow | RunIngestion | RunMaterialization | RunIndex


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a replica is: its address, a problem of the whole process, its incarnation, its last reconciliation.

    ``reused``, ``replaced`` (by reason), ``dropped`` and ``created`` are of the last connection.  ``obeys``: it is
    connected and has reconciled.  ``problems``: those of items in this replica, by name, also where another replica
    brings the item on.
    """

    address: str
    problem: str = ""
    incarnation: str = ""
    reused: int = 0
    replaced: dict[str, int] = {}
    dropped: int = 0
    created: int = 0
    obeys: bool = False
    problems: dict[str, str] = {}


def seen(addresses: Mapping[str, str], known: Mapping[str, ReplicaStatus]) -> dict[str, Any]:
    """Return how each of some replicas is, as plain data; ``known``: of those that were seen."""
    unseen = "it was not seen yet"
    return {
        name: msgspec.to_builtins(known.get(name, ReplicaStatus(address, unseen)), enc_hook=text_alone)
        for name, address in addresses.items()
    }


class Replicas:
    """The replicas of one instance, by name, and what they run."""

    def __init__(
        self, name: str, hello: Hello, dial: Dial, beside: Beside, clock: Clock, reported: Callable[[], None]
    ) -> None:
        """``reported`` is called whenever a replica has said how something stands."""
        self.name = name
        self.trust = Trust()
        self._reported = reported
        self.links: dict[str, Link] = {}
        self._hello = hello
        self._dial = dial
        self._beside = beside
        self._clock = clock
        self._history = History()
        self._runs: dict[str, Create] = {}
        self._places: dict[str, str] = {}  # of what only one replica may run, by name
        self._gone: dict[str, Deadline] = {}  # replicas of before, until what ran there alone may run elsewhere
        self._turn = 0
        self._alone = False  # whether the last turn ended without a replica
        self._time = MINIMUM  # where everything was brought to last
        self._behind: dict[str, tuple[Frontier, int]] = {}  # where each thing that is late stands, and since when (ms)
        self._unsaid: dict[str, str] = {}  # by name, why what is to run cannot be said
        self._asked = Asked(self._history, self._say, lambda: self.obeying)

    async def follow(self, addresses: Mapping[str, str]) -> None:
        """Have these be the replicas: connect to those that are new, and leave those that are not among them."""
        for name in [name for name, link in self.links.items() if addresses.get(name) != link.address]:
            self._gone[name] = Deadline(self._clock, MOVES_AFTER_S)
            await self.links.pop(name).dismiss([CreateInstance(self.name, name), InitializationComplete()])
            self.trust.forget(name)
        for name, address in addresses.items():
            if name not in self.links:
                self._gone.pop(name, None)
                self.links[name] = Link(
                    address,
                    self._dial,
                    self._beside,
                    self._clock,
                    self._everything(name),
                    self._asked.answered,
                    self._heard,
                )

    async def greet(self, hello: Hello) -> None:
        """Say ``hello`` to all replicas, over new connections."""
        self._hello = hello
        for link in self.links.values():
            await link.renew()

    def _everything(self, replica: str) -> Callable[[], list[Command]]:
        def said() -> list[Command]:
            rest = self._history.reduced()
            before = [each for each in rest if not isinstance(each, Advance) and self._concerns(replica, each)]
            after = [each for each in rest if isinstance(each, Advance)]
            return [self._hello, CreateInstance(self.name, replica), *before, InitializationComplete(), *after]

        return said

    async def peek(self, peek: Peek, deadline: Deadline) -> bytes | None:
        """Return the rows that the first replica to answer finds; None if none answers by the deadline; see `Asked`.

        ``peek`` names an index; the replicas are asked for the one of this name that they are to run now.
        """
        index = self._runs.get(peek.id)
        if index is None:
            return None
        return await self._asked.ask(msgspec.structs.replace(peek, id=index.exports[0]), deadline)

    def bar(self, replica: str, why: str) -> None:
        """Have a replica run nothing until its process is another one; ``why``: for an operator."""
        self.trust.bar(replica, self.links[replica], why, Deadline(self._clock, MOVES_AFTER_S))
        for command in (CreateInstance(self.name, replica), InitializationComplete()):
            self.links[replica].say(command)

    def _heard(self) -> None:
        for name in self.trust.learn(self.links):
            for command in self._everything(name)()[1:]:
                self.links[name].say(command)
        self._reported()

    @property
    def trusted(self) -> dict[str, Link]:
        """The replicas that are not barred, by name."""
        return {name: link for name, link in self.links.items() if name not in self.trust.bars}

    # ---- what runs ---------------------------------------------------------------------------------------------------

    def runs(self, name: str) -> bool:
        """Return whether the replicas are to run ``name``."""
        return name in self._runs

    def what(self, name: str) -> Placeable:
        """Return what the replicas are to run as ``name``."""
        return self._runs[name].what

    @property
    def ingests(self) -> bool:
        """Whether a source is among what runs: the controller does not know what its upstream has."""
        return any(isinstance(each.what, RunIngestion) for each in self._runs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """What the replicas are to run."""
        return tuple(self._runs)

    def start(self, name: str, what: Placeable, *, alone: bool = False) -> None:
        """Have ``what`` run as ``name``, in the place of what had this name; ``alone``: in one replica at a time."""
        wanted = Create(name, exports_of(name, what), what, alone=alone)
        if self._runs.get(name) == wanted:
            return
        self.stop(name)
        self._runs[name] = wanted
        try:
            encode(wanted)
        except (InvalidUsage, ProtocolViolation) as error:
            self._unsaid[name] = f"no replica can be told what to run: {first_line(error)}"
            return
        if alone:
            self._places[name] = self._first()
        for command in (wanted, Schedule(name), AllowWrites(name)):
            self._say(command)

    def stop(self, name: str) -> None:
        """Have ``name`` run no more."""
        known = self._runs.pop(name, None)
        self._places.pop(name, None)
        for link in self.links.values():
            link.heard.refused.pop(name, None)
        unsaid = self._unsaid.pop(name, None)
        for export in () if known is None or unsaid is not None else known.exports:
            self._say(AllowCompaction(export, EMPTY))

    def _say(self, command: Command) -> None:
        self._history.append(command)
        for name, link in self.links.items():
            if self._concerns(name, command):
                link.say(command)

    def _concerns(self, replica: str, command: Command) -> bool:
        """Return whether a replica is to hear ``command``: what runs alone begins in one of them.

        One that is barred hears none; but it is connected, so that another process of it is noticed.
        """
        if replica in self.trust.bars:
            return isinstance(command, Advance)
        return not isinstance(command, Schedule) or self._places.get(command.id, replica) == replica

    def _first(self) -> str:
        """Return a replica for what runs alone: one that obeys, if there is one; else any; empty if there is none."""
        trusted = self.trusted
        return next((name for name, link in trusted.items() if link.obeys), next(iter(trusted), ""))

    def _move(self) -> None:
        """Have what runs alone run elsewhere, once its replica is away for so long that it has stopped it itself."""
        for name in sorted({*self._places.values()}):
            if not self._obeys(name) and self._let_go(name) and (other := self._first()) and self.links[other].obeys:
                for each in [each for each, place in self._places.items() if place == name]:
                    self._places[each] = other
                    self.links[other].say(Schedule(each))

    def _let_go(self, replica: str) -> bool:
        """Return whether a replica that does not obey runs nothing any longer that only one may run.

        While it is connected it may be about to obey.
        """
        if (link := self.links.get(replica)) is None:
            gone = self._gone.get(replica)
            return gone is None or gone.left_s() <= 0
        if not link.connected:
            return link.lost.left_s() <= 0
        bar = self.trust.bars.get(replica)
        return bar is not None and (self.trust.obeys(replica, link) or bar.moves.left_s() <= 0)

    # ---- going on ----------------------------------------------------------------------------------------------------

    def aim(self, aim: Advance) -> None:
        """Have all that runs be brought to ``aim``: see `arrive`."""
        self._move()
        now, frontiers = self._clock.now_ms(), self.frontiers()
        before = self._behind
        self._behind = {}
        for name, at in frontiers.items():
            stood, since = before.get(name, (at, now))
            self._behind[name] = (at, since if stood == at and at <= self._time else now)
        self._turn, self._time = self._turn + 1, Frontier(aim.time)
        self._alone = False
        self._say(replace(aim, turn=self._turn))

    async def arrive(self, deadline: Deadline | None) -> None:
        """Return when everything is where it was brought to, or all replicas that obey have done what they can.

        Or at the deadline: what is late goes on.
        """
        connecting = Deadline(self._clock, CONNECTING_S)
        looked = 0
        while not (self._done and self.complete):
            obeying = [each for each in self.obeying if each.heard.advanced != self._turn and not each.heard.failing]
            settling = [link for link in self.trusted.values() if link.settling and connecting.left_s() > 0]
            left_s = None if deadline is None else deadline.left_s()
            if not (waited := obeying or settling):
                self._alone = not self.obeying
                break
            if left_s is not None and left_s <= 0:
                break
            await waited[looked % len(waited)].hear(LOOK_S if left_s is None else min(LOOK_S, left_s))
            looked += 1

    async def unopened(self, name: str, deadline: Deadline) -> str:
        """Return why no replica is known to have opened ``name``, which was commanded before the last `aim`.

        Empty: one has opened it.  Until the deadline, replicas that obey, or connect, are waited for.
        """
        if why := self._unsaid.get(name):
            return why
        connecting = Deadline(self._clock, CONNECTING_S)
        exports = {*self._runs[name].exports}
        looked = 0
        while True:
            done = self._done  # what others say may be of what had this name before
            running = [link for link in self.obeying if self._runs_in(name, link)]
            for link in running:
                if not link.heard.problem(name) and (link in done or exports <= link.heard.writes.keys()):
                    return ""
            settling = [link for link in self.trusted.values() if link.settling and connecting.left_s() > 0]
            waited = [link for link in running if link not in done] or settling
            if not waited or (left_s := deadline.left_s()) <= 0:
                told = (link.heard.problem(name) for link in running if link in done)
                said = next(told, "") or ("" if running else self.problems().get(name, ""))
                return said or f"no replica of instance {self.name!r} has opened it yet"
            await waited[looked % len(waited)].hear(min(LOOK_S, left_s))
            looked += 1

    @property
    def complete(self) -> bool:
        """Whether all that runs is beyond the time that it was brought to last."""
        return all(self._time < upper for upper in self.frontiers().values())

    # ---- reports -----------------------------------------------------------------------------------------------------

    @property
    def obeying(self) -> list[Link]:
        """The replicas that run what they are to run."""
        return [link for link in self.trusted.values() if link.obeys]

    def frontiers(self) -> dict[str, Frontier]:
        """Return how far each item is that runs, or is fed by what runs: as far as the furthest replica."""
        found = {name: self.upper(name) for name in self._runs}
        for created in self._runs.values():
            found |= {item: self._furthest(export) for item, export in _fed(created).items()}
        return found

    def upper(self, name: str) -> Frontier:
        """Return how far ``name`` is: as far as the furthest replica; the minimum if it does not run."""
        created = self._runs.get(name)
        return MINIMUM if created is None else meet(map(self._furthest, created.exports))

    def _furthest(self, export: str) -> Frontier:
        return join((MINIMUM, *(link.heard.upper(export) for link in self.links.values())))

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
        if not obeying or (self._alone and not self._done):
            said = {name: f"{link.address}: {link.trouble or 'it has come back'}" for name, link in self.links.items()}
            away = "; ".join(f"{name} at {why}" for name, why in sorted(said.items()))
            why = f"no replica of instance {self.name!r} is connected ({away or 'it has none'})"
            return dict.fromkeys(self.frontiers(), why)
        found = dict(self._unsaid)
        for name, upper in self.frontiers().items():
            if name in self._unsaid:
                continue
            if name in self._runs and isinstance(self._runs[name].what, RunDataflow) and self._time < upper:
                continue  # another replica has brought it there
            runs_it = [link for link in obeying if self._runs_in(name, link)]
            told = [link.heard.problem(name) for link in runs_it]
            if all(told) and runs_it:
                found[name] = told[0]
            elif not runs_it and name in self._places and not self._obeys(self._places[name]):
                place = f"replica {self._places[name]!r} of instance {self.name!r}"
                found[name] = f"{place} has run it and does not obey now, and no other one can: start it"
        return found

    def _runs_in(self, name: str, link: Link) -> bool:
        place = self._places.get(self._source_of(name), None)
        return place is None or self.links.get(place) is link

    def _obeys(self, replica: str) -> bool:
        return replica in self.trusted and self.links[replica].obeys

    def _source_of(self, item: str) -> str:
        """Return the name of what runs for ``item``: of a source's table, the source."""
        feeding = (name for name, created in self._runs.items() if item in _fed(created))
        return item if item in self._runs else next(feeding, item)

    @property
    def _done(self) -> list[Link]:
        """The replicas that have done the last `Advance`: what they say is of now."""
        return [link for link in self.obeying if link.heard.advanced == self._turn]

    def going_on(self) -> dict[str, int | None]:
        """Return what is on its way to where it was brought last, and since when (milliseconds), if that is known."""
        done, problems, frontiers = self._done, self.problems(), self.frontiers()
        settled = {name for name, at in frontiers.items() if self._time < at or (done and name in problems)}
        found: dict[str, int | None] = {}
        for link in self.obeying:
            if link.heard.advanced != self._turn:
                begun = {name: since for name, (_, since) in self._behind.items()} | link.heard.under_way
                found |= {name: begun.get(name) for name in frontiers if name not in settled}
        return found

    def replicas(self) -> dict[str, ReplicaStatus]:
        """Return how each replica is, by its name."""
        found = {}
        for name, link in self.links.items():
            kept = link.heard.reconciled or Reconciled(0, {}, 0, 0)
            found[name] = ReplicaStatus(
                link.address,
                self.trust.bars[name].why if name in self.trust.bars else link.trouble or link.heard.trouble,
                link.heard.incarnation,
                kept.reused,
                kept.replaced,
                kept.dropped,
                kept.created,
                name not in self.trust.bars and link.obeys,
                link.heard.items,
            )
        return found

    def notices(self) -> dict[str, list[str]]:
        """Return the notices of sources, by the source's name: those of all replicas, each once."""
        found: dict[str, list[str]] = {}
        for link in self.obeying:
            for name, said in link.heard.notices.items():
                found[name] = list(dict.fromkeys((*found.get(name, ()), *said)))
        return found

    def added(self) -> dict[str, tuple[Column, ...]]:
        """Return the columns that collections of sources are to get, by name: what one replica has found is so."""
        return {name: columns for link in self.obeying for name, columns in link.heard.added.items()}

    def counters(self) -> dict[str, int]:
        """Return the live counters of what runs; see `live.together`."""
        return live.together([link.heard.counters for link in self.obeying])

    async def close(self) -> None:
        """Leave the replicas, which go on with what they run."""
        for link in self.links.values():
            await link.close()


def _fed(created: Create) -> dict[str, str]:
    """Return the items that a source feeds, each with its export; none for anything else."""
    if not isinstance(created.what, RunIngestion):
        return {}
    items = [each.collection.name.lower() for each in created.what.outputs]
    return dict(zip(items, created.exports, strict=True))
