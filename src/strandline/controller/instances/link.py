"""A link: the connection to one replica, made again whenever it is cut, and what the replica has reported over it.

The controller only passes commands to the link and goes on: a replica that hangs delays nothing else.  A new connection
begins with everything that the replica is to run.  Reports over an earlier connection are forgotten: until a replica
has reported a frontier, only the minimum is assumed.

A replica that has computed something wrong is *barred*: it gets no commands until its process is another one, or until
it is dropped and added again.  It stays connected, so that a new process of it is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from strandline.algebra.schema import Column
from strandline.compute.sink.correction import Disagreement
from strandline.errors import reason
from strandline.frontier import MINIMUM, Frontier
from strandline.instance import live
from strandline.instance.commands import Advance
from strandline.instance.loop import Loop
from strandline.instance.protocol.carrier import ALONE_S, NOTICED_S, Carrier, Dial
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import (
    REPLICA,
    UPKEEP,
    CancelPeeks,
    Command,
    Frontiers,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Refused,
    Response,
    Status,
    Unknown,
    Welcome,
)
from strandline.persist.shard.patience import Deadline
from strandline.problem import Problem, Stopped, Way, all_known_by, joined, known_by
from strandline.store.clock import Beside, Clock, Running

T = TypeVar("T")

RETRY_S_MIN: Final = 0.2
RETRY_S_MAX: Final = 5.0
"""How long after a connection could not be made the next one is tried: at first, and after back-off."""
DISMISSED_WITHIN_S: Final = 1.0
"""How long a replica that is dropped may take to hear it; then it learns it from the connection that ends."""
SPARE_S: Final = 3.0
MOVES_AFTER_S: Final = NOTICED_S + ALONE_S + SPARE_S
"""How long after a connection was lost another replica begins what only one may run: the one before has let go."""


@dataclass
class Heard:
    """What a replica has said over the present connection.

    ``reconciled``: None until it has compared what it runs with what it is to run: then nothing else is believed yet.
    ``owed``: how many `InitializationComplete` were sent that the replica has not answered with `Reconciled`.
    ``under_way``: since when by the clock of this process, as it was heard; that of a replica may be another one.
    """

    incarnation: str = ""
    reconciled: Reconciled | None = None
    owed: int = 0
    writes: dict[str, Frontier] = field(default_factory=dict)
    needs: dict[str, Frontier] = field(default_factory=dict)
    advanced: int | None = None
    problems: dict[str, str] = field(default_factory=dict)
    under_way: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    disagreements: dict[str, Disagreement] = field(default_factory=dict)
    writers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    added: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why commands were not obeyed, by the item that each names; one that names none by its kind in brackets."""

    @property
    def failing(self) -> str:
        """Why the replica as a whole does not go on; empty: it does."""
        return self.problems.get(REPLICA, "")

    @property
    def trouble(self) -> str:
        """What an operator should know of the replica as a whole; empty: nothing."""
        refused = (why for about, why in self.refused.items() if about.startswith("("))
        return joined((self.failing, self.problems.get(UPKEEP, ""), *refused))

    def problem(self, name: str) -> str:
        """Return what stands in the way of what runs as ``name`` in the replica; empty: nothing that is known."""
        return self.problems.get(name) or self.refused.get(name) or self.failing

    @property
    def items(self) -> dict[str, str]:
        """What stands in the way of things that run in the replica, by their names."""
        return {name: why for name, why in (self.problems | self.refused).items() if not name.startswith("(")}

    def upper(self, name: str) -> Frontier:
        """Return how far the replica says that ``name`` is; the minimum where it has not said it."""
        return self.writes.get(name, MINIMUM)

    def learn(self, said: Response | Command | Unknown, now_ms: int) -> None:
        """Take note of what was said, at ``now_ms``."""
        match said:
            case Welcome(incarnation):
                self.incarnation = incarnation
            case Reconciled():
                self.reconciled, self.owed = said, self.owed - 1
                self.advanced = None  # it counts turns anew: what it runs is something else now
            case Refused(command, why, id=about):
                self.refused[about or f"({command})"] = f"it does not obey {command}: {why}"
            case Frontiers(writes, needs, advanced, gone):
                self.writes = _without(self.writes | writes, gone)
                self.needs |= {shard: needed for shard, needed in needs.items() if not needed.empty}
                for shard in [shard for shard, needed in needs.items() if needed.empty]:
                    self.needs.pop(shard, None)
                self.advanced = self.advanced if advanced is None else advanced
            case Status(problems, under_way, counters, disagreements, writers, notices, vanished, added):
                cases, noticed = said.cases, said.notice_cases
                known = {name: known_by(text, cases.get(name, ())) for name, text in problems.items()}
                self.problems = {name: text for name, text in (self.problems | known).items() if text}
                begun = {name: now_ms for name, since in under_way.items() if since is not None}
                self.under_way = _without(self.under_way, tuple(under_way)) | begun
                counted = self.counters | live.arrived(counters, now_ms)
                self.counters = _without(counted, vanished.get("counters", ()))
                self.disagreements = _without(self.disagreements | disagreements, vanished.get("disagreements", ()))
                self.writers = _without(self.writers | writers, vanished.get("writers", ()))
                remarks = {name: tuple(all_known_by(each, noticed.get(name, ()))) for name, each in notices.items()}
                self.notices = _without(self.notices | remarks, vanished.get("notices", ()))
                self.added = _without(self.added | added, vanished.get("added", ()))
            case _:
                pass


def _without(known: dict[str, T], gone: Sequence[str]) -> dict[str, T]:
    return {name: value for name, value in known.items() if name not in gone}


class Link:
    """What the controller knows of one replica, and how it speaks to it."""

    def __init__(
        self,
        address: str,
        dial: Dial,
        beside: Beside,
        clock: Clock,
        everything: Callable[[], Sequence[Command]],
        answered: Callable[[Link, PeekResponse], None],
        reported: Callable[[], None],
    ) -> None:
        """``everything``: what a new connection begins with.  ``answered`` is called with each answer to a question.

        ``reported`` is called when the replica has said how something stands, or the connection is lost.
        """
        self.address = address
        self.heard = Heard()
        self.trouble = "it was not connected yet"
        """Why there is no connection, or the replica does not obey; empty: it does."""
        self.lost = Deadline(clock, MOVES_AFTER_S)
        """When the replica has stopped what it runs only while it is connected; counted from the last connection."""
        self.stale = False
        """Whether the replica obeys a newer controller."""
        self._dial = dial
        self._beside = beside
        self._clock = clock
        self._everything = everything
        self._answered = answered
        self._reported = reported
        self._carrier: Carrier | None = None
        self._outbox: deque[Command] = deque()
        self._sending = Loop(beside, self._send)
        self._receiving: Running | None = None
        self._retry_s = RETRY_S_MIN
        self._pause = Deadline(clock, 0)  # when it has passed, the next connection may be tried
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._carrier is not None

    @property
    def obeys(self) -> bool:
        """Whether the replica runs what it is to run, as far as is known."""
        return self._carrier is not None and self.heard.reconciled is not None and self.heard.owed == 0

    @property
    def settling(self) -> bool:
        """Whether it is about to be known whether the replica obeys."""
        return not self._closed and not self.obeys and (self._carrier is not None or not self._sending.resting)

    def say(self, command: Command) -> None:
        """Have a replica that is connected obey ``command``.

        To one that is not, `Advance` and `Peek` connect, if that is due: they come once all is said that is to run.
        A controller that connected while it still opens would have the replica end what it has not come to yet.
        """
        if self._carrier is not None:
            self._outbox = deque(each for each in self._outbox if not _overtaken(each, command))
            self._outbox.append(command)
            self.heard.owed += isinstance(command, InitializationComplete)
            self._sending.wake()
        elif isinstance(command, Advance | Peek) and not self._closed and self._pause.left_s() <= 0:
            self._sending.wake()

    async def hear(self, seconds: float) -> None:
        """Return when something was received, or the connection was made or lost, or after so many seconds."""
        receiving = self._receiving
        if receiving is None or (await receiving.wait(seconds) and receiving is self._receiving):
            await self._clock.sleep(seconds)  # nothing is received now

    async def renew(self) -> None:
        """Have the next command be said over a new connection."""
        if self._carrier is not None:
            await self._lost("it is connected anew")
        self._pause = Deadline(self._clock, 0)

    async def dismiss(self, last: Sequence[Command]) -> None:
        """Say ``last`` to a replica that is not to be spoken to again, if it listens, and end the connection."""
        with suppress(Exception):  # whatever stands in the way of that, the connection ends
            heard = await self._sending.rest(Deadline(self._clock, DISMISSED_WITHIN_S))
            if heard and (carrier := self._carrier) is not None:
                for command in last:
                    await carrier.send(encode(command))
        await self.close()

    async def close(self) -> None:
        """End the connection; the replica goes on with what it runs."""
        self._closed = True
        await self._sending.end()
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            await receiving.cancel()
        if self._carrier is not None:
            await self._carrier.close()
            self._carrier = None

    async def _send(self) -> None:
        try:
            if self._carrier is None:
                self._pause = Deadline(self._clock, self._retry_s)
                self._retry_s = min(RETRY_S_MAX, 2 * self._retry_s)
                carrier = await self._dial(self.address)
                self.heard, self._carrier = Heard(owed=1), carrier
                self._outbox = deque(self._everything())
                self._receiving = self._beside(lambda: self._receive(carrier))
            while self._outbox and self._carrier is not None:
                await self._carrier.send(encode(self._outbox.popleft()))
        except Exception as error:  # noqa: BLE001 - such as a token that cannot be read: whatever it is, it is said
            await self._lost(reason(error))

    async def _receive(self, carrier: Carrier) -> None:
        """Receive one message, and have the next one received by a call of its own: callers that wait for one go on."""
        try:
            frame = await carrier.receive(None)
            if frame is not None:
                await self._learn(decode(frame))
        except Exception as error:  # noqa: BLE001 - a connection over which nothing is heard is none
            if carrier is self._carrier:
                await self._lost(reason(error))
        if carrier is self._carrier and not self._closed:
            self._receiving = self._beside(lambda: self._receive(carrier))

    async def _learn(self, said: Response | Command | Unknown) -> None:
        match said:
            case PeekResponse():
                self._answered(self, said)
            case Refused("Hello", why, succeeded):
                self.stale = succeeded
                await self._lost(why)
            case _:
                self.heard.learn(said, self._clock.now_ms())
                if self.obeys:
                    self.trouble, self._retry_s = "", RETRY_S_MIN
                self._reported()

    async def _lost(self, why: str) -> None:
        carrier, self._carrier = self._carrier, None
        self.trouble, self.heard, self._receiving = why, Heard(), None
        if carrier is not None:
            self.lost = Deadline(self._clock, MOVES_AFTER_S)
            self._reported()  # what it said before is forgotten
            await carrier.close()


def _overtaken(earlier: Command, command: Command) -> bool:
    """Return whether a command that was not sent yet need not be sent, now that ``command`` is."""
    match earlier, command:
        case Advance(), Advance():
            return True
        case Peek(uuid=uuid), CancelPeeks(uuids):
            return uuid in uuids
        case _:
            return False


WRONG: Final = Problem(
    "replica-wrong",
    "replica {replica!r} of instance {instance!r} {computed_wrong}; {how_it_ends}",
    Stopped.NOTHING,
    (Way("restart the process of that replica"),),
    "What the other replicas computed.",
)
DISAGREE: Final = Problem(
    "replicas-disagree",
    "replica {replica!r} of instance {instance!r} and another one disagree about {stage!r} at {time}; {why}",
    Stopped.NOTHING,
)
UNKNOWN: Final = Problem(
    "repair-unknown",
    "whether {stage!r} is right again cannot be found out now: {why}",
    Stopped.NOTHING,
)
COMPLETE: Final = Problem(
    "wrong-for-ever",
    "{stage!r} is complete for ever, with what a wrong replica wrote: {kept}",
    Stopped.VIEW,
    (Way("define it anew, with all that reads it", "strandline anew {item:shell} --apply"),),
    "The wrong rows.",
)


@dataclass(frozen=True, eq=False)
class Process:
    """A process of a replica, since the replica was added."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Why a process of a replica runs nothing; ``before``: what it said that it had kept of what ran.

    ``moves``: until when what only one replica may run is left with it, if it does not say that it obeys.
    """

    why: str
    before: Reconciled | None
    moves: Deadline


class Trust:
    """What is known of the replicas' processes, by the names of the replicas."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        """Each as it was heard last."""
        self.bars: dict[str, Bar] = {}

    def bar(self, replica: str, link: Link, why: str, moves: Deadline) -> None:
        """Trust the process of a replica no longer, for ``why``, as an operator reads it; ``moves``: see `Bar`."""
        self.bars[replica] = Bar(why, link.heard.reconciled, moves)

    def obeys(self, replica: str, link: Link) -> bool:
        """Return whether a barred replica has said that it runs nothing."""
        return link.heard.reconciled is not None and link.heard.reconciled is not self.bars[replica].before

    def learn(self, links: Mapping[str, Link]) -> list[str]:
        """Take note of which processes the replicas are; return those that were barred and are other processes now."""
        lifted = []
        for name, link in links.items():
            known, incarnation = self.processes.get(name), link.heard.incarnation
            if incarnation and (known is None or known.incarnation != incarnation):
                self.processes[name] = Process(incarnation)
                if self.bars.pop(name, None) is not None:
                    lifted.append(name)
        return lifted

    def forget(self, replica: str) -> None:
        """Know nothing of a replica that was dropped."""
        self.processes.pop(replica, None)
        self.bars.pop(replica, None)
