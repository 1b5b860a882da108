"""A replica: an instance that a controller in another process commands, and that outlives it.

A controller connects, says who it is (`Hello`), and commands again everything that is to run.  The replica compares,
and keeps everything that already runs the same way: contents arranged in memory, prepared plans, open handles.  So a
restart of the controller costs nothing but this comparison.

The replica obeys the newest controller that it has seen, over that controller's newest connection.  From then on it
obeys no command of an older one, not even a command that was sent before and not looked at yet.

It knows no catalog and no names but ids; it reads and writes shards by its own client.  It looks at what others write
whenever it is brought to a time (`Advance`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa

from strandline.algebra.schema import Column
from strandline.compute.sink.correction import Disagreement
from strandline.errors import Disconnected, FencedError, ProtocolViolation, Unavailable, first_line, reason
from strandline.frontier import EMPTY, Frontier
from strandline.instance.commands import Advance, RunIndex, outputs_of, shards_of
from strandline.instance.connections import Equipment
from strandline.instance.indexes.keys import packed, unpacked
from strandline.instance.instance import Instance
from strandline.instance.loop import Loop
from strandline.instance.problems import Problems
from strandline.instance.protocol.carrier import ALONE_S, FRAME_BYTES_MAX, Carrier
from strandline.instance.protocol.codec import encode, understood
from strandline.instance.protocol.messages import (
    REPLICA,
    UPKEEP,
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Frontiers,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Refused,
    Response,
    Schedule,
    Status,
    Unknown,
    UpdateConfiguration,
    Welcome,
)
from strandline.instance.reconcile import Reconciliation, reconcile
from strandline.persist.shard.patience import Deadline
from strandline.problem import cases_of
from strandline.store.clock import Beside, Running

T = TypeVar("T")


@dataclass(frozen=True)
class Standing:
    """How everything stands, as `Frontiers` and `Status` name it."""

    writes: Mapping[str, Frontier] = field(default_factory=dict)
    needs: Mapping[str, Frontier] = field(default_factory=dict)
    advanced: int | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    under_way: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    disagreements: Mapping[str, Disagreement] = field(default_factory=dict)
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    added: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)


@dataclass
class Reporter:
    """What one connection was sent.

    A report holds what has changed since the last one over this connection.  A connection begins with nothing known, so
    its first report holds everything: a controller assumes the minimum of what it has not been sent.
    """

    sent: Standing = field(default_factory=Standing)

    def begin_turns(self) -> None:
        """Take note that turns are counted anew: the other end has forgotten which one was done last."""
        self.sent = replace(self.sent, advanced=None)

    def changes(self, now: Standing) -> list[Response]:
        """Return the messages that bring the other end from what it was sent to how everything stands now.

        What is no longer written, because it was dropped, is gone: that is not the empty frontier, which would say that
        it is complete for ever.
        """
        before, self.sent = self.sent, now
        writes, needs = _changed(before.writes, now.writes), _changed(before.needs, now.needs)
        released = dict.fromkeys(before.needs.keys() - now.needs.keys(), EMPTY)
        advanced = None if now.advanced == before.advanced else now.advanced
        problems = _changed(before.problems, now.problems) | dict.fromkeys(before.problems.keys() - now.problems, "")
        under_way: dict[str, int | None] = {**_changed(before.under_way, now.under_way)}
        under_way |= dict.fromkeys(before.under_way.keys() - now.under_way.keys())
        counters = _changed(before.counters, now.counters)
        disagreements, writers = (
            _changed(before.disagreements, now.disagreements),
            _changed(before.writers, now.writers),
        )
        notices, added = _changed(before.notices, now.notices), _changed(before.added, now.added)
        ended = {
            "counters": _gone(before.counters, now.counters),
            "disagreements": _gone(before.disagreements, now.disagreements),
            "writers": _gone(before.writers, now.writers),
            "notices": _gone(before.notices, now.notices),
            "added": _gone(before.added, now.added),
        }
        vanished = {kind: names for kind, names in ended.items() if names}
        cases = {name: cases for name, said in problems.items() if (cases := cases_of(said))}
        noticed = {name: tuple(map(cases_of, said)) for name, said in notices.items() if any(map(cases_of, said))}
        status = Status(problems, under_way, counters, disagreements, writers, notices, vanished, added, cases, noticed)
        gone = _gone(before.writes, now.writes)
        found: list[Response] = []
        if status != Status():
            found.append(status)
        if (
            writes or needs or released or gone or advanced is not None
        ):  # last: by then it is known why something stands still
            found.append(Frontiers(writes, needs | released, advanced, gone))
        return found


def _changed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _gone(before: Mapping[str, T], now: Mapping[str, T]) -> tuple[str, ...]:
    return tuple(sorted(before.keys() - now.keys()))


Find: TypeAlias = Callable[[Peek], Awaitable[pa.Table]]

ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX - (64 << 10)
"""More rows than this are not sent: the controller reads them itself."""


class Peeks:
    """The peeks of one connection that are owed an answer, by their uuids.

    A peek is owed one answer: rows, an error, or that it was cancelled.  It is answered beside everything else, over
    the connection that asked.  When that connection ends, nothing is owed any longer: a controller that connects again
    asks again for what it still wants to know.
    """

    def __init__(self, beside: Beside, send: Callable[[PeekResponse], Awaitable[None]]) -> None:
        self._beside = beside
        self._send = send
        self._held: dict[str, Peek] = {}
        self._owed: dict[str, Running] = {}

    def hold(self, peek: Peek) -> None:
        """Answer ``peek`` when what runs has been compared with what is to run: see `release`."""
        self._held[peek.uuid] = peek

    def release(self, find: Find) -> None:
        """Answer the peeks that were held."""
        held, self._held = self._held, {}
        for peek in held.values():
            self.ask(peek, find)

    def ask(self, peek: Peek, find: Find) -> None:
        """Answer ``peek`` with the rows that ``find`` returns; a repetition of one that is owed is ignored."""
        if peek.uuid not in self._owed:
            self._owed[peek.uuid] = self._beside(lambda: self._answer(peek, find))

    async def cancel(self, uuids: Iterable[str]) -> None:
        """Answer those that are still owed an answer that they were cancelled."""
        for uuid in uuids:
            held, running = self._held.pop(uuid, None), self._owed.pop(uuid, None)
            if running is not None:
                await running.cancel()
            if running is not None or held is not None:
                await self._send(PeekResponse(uuid, cancelled=True))

    async def end(self) -> None:
        """Answer none: the connection has ended."""
        self._held.clear()
        while self._owed:
            _, running = self._owed.popitem()
            await running.cancel()

    async def _answer(self, peek: Peek, find: Find) -> None:
        answer = await _answered(peek, find)
        if self._owed.pop(peek.uuid, None) is not None:  # else it was cancelled, and is answered
            await self._send(answer)


async def _answered(peek: Peek, find: Find) -> PeekResponse:
    try:
        rows = packed(await find(peek))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return PeekResponse(peek.uuid, error=reason(error))
    if len(rows) > ANSWER_BYTES_MAX:
        return PeekResponse(
            peek.uuid, error=f"the rows take {len(rows)} bytes, and {ANSWER_BYTES_MAX} are sent at most"
        )
    return PeekResponse(peek.uuid, rows)


SLICE_S: Final = 0.5
"""How long commands wait while everything is brought to a time; what takes longer goes on beside them."""
ENDING: Final = "(ending)"
"""What is noted under it was raised by something that was ended."""
REPORT_S: Final = 0.25
"""How often what goes on beside is reported."""


@dataclass
class Wanted:
    """What a controller wants to run: creations by id, and what may begin and write of them."""

    created: dict[str, Create] = field(default_factory=dict)
    scheduled: set[str] = field(default_factory=set)
    writing: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    """What has ended since the last turn: if it is created again, it is opened anew, though it be equal."""

    def create(self, created: Create) -> None:
        """Have something run, in the place of what had its id."""
        self.drop(created.id)
        self.created[created.id] = created

    def drop(self, each: str) -> None:
        """Have something run no more."""
        known = self.created.pop(each, None)
        self.ended -= set(() if known is None else known.exports)
        self.scheduled.discard(each)
        self.writing.discard(each)

    def end(self, export: str) -> None:
        """Take note that nothing reads an export from now on: what has none left is dropped."""
        for each in list(self.created.values()):
            if export in each.exports:
                self.ended.add(export)
                if self.ended.issuperset(each.exports):
                    self.drop(each.id)
                    self.stopped.add(each.id)


@dataclass(eq=False)
class Connection:
    """One connection of a controller, from its `Hello` on."""

    carrier: Carrier
    hello: Hello
    peeks: Peeks
    reporter: Reporter = field(default_factory=Reporter)
    wanted: Wanted | None = None
    """What was said since `CreateInstance`, until `InitializationComplete`."""
    reconciled: bool = False
    """Whether that was compared with what runs: before, nothing is reported of it."""


class Replica:
    """What runs in this process for one instance."""

    def __init__(self, equipment: Equipment, location: str, incarnation: str) -> None:
        """``location``: which one the stores of ``equipment`` hold.  ``incarnation``: of this process."""
        self._equipment = equipment
        self._location = location
        self._incarnation = incarnation
        self._problems = Problems(equipment.client.clock)
        self._epoch = 0  # of the newest controller
        self._writes = 0
        self._instance: Instance | None = None
        self._runs: dict[str, Create] = {}  # what was begun
        self._wanted = Wanted()
        self._connection: Connection | None = None
        self._greeted = 0  # how many connections there were
        self._alone = True  # whether what only one replica may run may run here
        self._inbox: deque[tuple[Connection, Command | Unknown]] = deque()
        self._aim: Advance | None = None
        self._begun: int | None = None  # the turn of the last aim that everything was brought to
        self._advanced: int | None = None
        self._turns = Loop(equipment.patience.beside, self._turn)

    # ---- connections -------------------------------------------------------------------------------------------------

    async def serve(self, carrier: Carrier) -> None:
        """Obey what comes over ``carrier``; return when it is cut, or a newer connection has taken its place."""
        connection: Connection | None = None
        try:
            connection = await self._welcomed(carrier)
            while connection is not None and connection is self._connection:
                frame = await carrier.receive(REPORT_S)
                said = None if frame is None else command(understood(frame))
                if said is not None and self._passes(connection, said):
                    await self._obey(connection, said)
                    said = None
                if said is not None:
                    self._inbox.append((connection, said))
                if said is not None or self._busy:
                    self._turns.wake()
                self._turns.check()
        except Disconnected:
            pass
        except ProtocolViolation as error:
            with suppress(Disconnected):
                await carrier.send(encode(Refused("Hello", first_line(error))))
        except Exception as error:  # noqa: BLE001 - a bug of ours: the connection ends like any other
            self._problems.note(REPLICA, reason(error))
        finally:
            current = self._connection
            left = current if current is not None and current.carrier is carrier else connection
            if left is not None:
                await left.peeks.end()
            await carrier.close()
        if left is not None:
            await self._left(left)

    def _passes(self, connection: Connection, said: Command | Unknown) -> bool:
        """Return whether a command is obeyed at once: a peek of what runs, and taking one back, wait for no turn."""
        if connection is not self._connection or not connection.reconciled or connection.wanted is not None:
            return False
        waiting = [each for _, each in self._inbox]
        match said:
            case Peek(id=export):
                return bool(self._index(export)) and not any(isinstance(each, CreateInstance) for each in waiting)
            case CancelPeeks():
                return not any(isinstance(each, Peek) for each in waiting)
            case _:
                return False

    def _index(self, export: str) -> str:
        """Return the name of the index with this export that runs here; empty: none does."""
        return next((each.id for each in self._runs.values() if export in each.exports), "")

    async def _left(self, connection: Connection) -> None:
        """Stop what only one replica may run, once no controller has come back in time: another one is to begin it."""
        if connection is self._connection:
            self._connection = None
        greeted = self._greeted
        await self._equipment.client.clock.sleep(ALONE_S)
        if self._connection is None and self._greeted == greeted:
            self._alone = False
            self._turns.wake()

    async def _welcomed(self, carrier: Carrier) -> Connection | None:
        """Return the connection, once its first message shows that its controller is to be obeyed; else None."""
        frame = await carrier.receive(None)
        hello = None if frame is None else understood(frame)
        if not isinstance(hello, Hello):
            said = f"{hello.name} {hello.why}".strip() if isinstance(hello, Unknown) else type(hello).__name__
            raise ProtocolViolation(f"a connection begins with Hello, and this one with {said}")
        if refusal := self._refusal(hello):
            await carrier.send(encode(Refused("Hello", refusal, succeeded=hello.epoch < self._epoch)))
            return None
        self._epoch = hello.epoch
        peeks = Peeks(self._equipment.patience.beside, lambda answer: self._send(connection, answer))
        before, connection = self._connection, Connection(carrier, hello, peeks)
        self._connection = connection
        self._greeted += 1
        if before is not None:
            await before.peeks.end()
        await carrier.send(encode(Welcome(self._incarnation)))
        return connection

    def _refusal(self, hello: Hello) -> str:
        if hello.location != self._location:
            return f"this replica is of location {self._location}, and the controller of {hello.location}"
        if hello.epoch < self._epoch:
            return f"controller generation {hello.epoch} was succeeded by generation {self._epoch}"
        if hello.writes < self._writes:
            return f"writes of epoch {hello.writes} are over: epoch {self._writes} has begun"
        return ""

    @property
    def _busy(self) -> bool:
        """Whether something goes on of which there is more to report."""
        return self._aim is not None and self._advanced != self._aim.turn

    async def close(self) -> None:
        """End all that runs.  Raises what an upstream or an endpoint raises."""
        self._connection = None
        await self._turns.end()
        if self._instance is not None:
            await self._instance.close()

    # ---- obeying -----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Obey what has come, bring everything on, and report."""
        try:
            while self._inbox:
                connection, command = self._inbox.popleft()
                if connection is self._connection:
                    await self._obey(connection, command)
            await self._go_on()
        except FencedError:
            # A shard was closed before this replica learned that its view was dropped; or all writes here are over.
            # Which of them goes on is found by opening each anew.
            await self._renew(self._writes)
        except Exception as error:  # noqa: BLE001 - a bug of ours, or of a library's: it ends no replica
            self._problems.note(REPLICA, reason(error))
        else:
            self._problems.note(REPLICA, "")
        current = self._connection
        if current is not None and current.reconciled:
            for message in current.reporter.changes(self._standing()):
                await self._send(current, message)

    async def _obey(self, connection: Connection, command: Command | Unknown) -> None:
        wanted = connection.wanted or self._wanted
        match command:
            case Unknown(name, fields, why):
                about, unknown = fields.get("id"), "this version of the replica does not know this command"
                said = Refused(name, why or unknown, id=about if isinstance(about, str) else "")
                await self._send(connection, said)
            case Hello():
                await self._send(connection, Refused("Hello", "this connection was greeted already"))
            case CreateInstance():
                connection.wanted = Wanted()
            case InitializationComplete():
                await self._reconcile(connection)
            case Create():
                wanted.create(command)
            case Schedule(each):
                wanted.scheduled.add(each)
            case AllowWrites(each):
                wanted.writing.add(each)
            case AllowCompaction(export, frontier):
                if frontier.empty:
                    wanted.end(export)
            case Advance():
                self._aim = command
            case UpdateConfiguration():
                pass  # nothing is configured yet that changes while it runs
            case Peek() if connection.wanted is not None:
                connection.peeks.hold(command)
            case Peek():
                connection.peeks.ask(command, self._peeked)
            case CancelPeeks(uuids):
                await connection.peeks.cancel(uuids)

    async def _peeked(self, peek: Peek) -> pa.Table:
        """Return the rows that an index finds that runs here.  Raises what `Instance.peek` does."""
        if self._instance is None or not (name := self._index(peek.id)):
            raise Unavailable("the index does not run here yet")
        return await self._instance.peek(name, unpacked(peek.key), peek.as_of, peek.limit)

    async def _reconcile(self, connection: Connection) -> None:
        """Keep what runs as it is commanded, and end the rest: in one step, so that nothing runs twice."""
        hello, said = connection.hello, connection.wanted
        if said is None:
            await self._send(connection, Refused("InitializationComplete", "CreateInstance comes before it"))
            return
        epoch_over = self._instance is None or hello.writes != self._writes
        found = reconcile(self._runs, said.created, epoch_over=epoch_over)
        self._wanted = said
        await self._end(found)
        if epoch_over:
            await self._renew(hello.writes)
        self._runs |= {each: said.created[each] for each in found.keep}  # kept as commanded now: readable from later on
        connection.wanted, connection.reconciled = None, True
        self._alone = True
        self._aim, self._begun, self._advanced = None, None, None  # turns are counted anew by each controller
        connection.reporter.begin_turns()
        await self._send(connection, found.counted)
        connection.peeks.release(self._peeked)

    async def _end(self, found: Reconciliation) -> None:
        for each in (*found.drop, *found.replace):
            await self._stop(each)

    async def _renew(self, writes: int) -> None:
        """End all that runs, and begin with nothing, under the epoch ``writes``."""
        for each in list(self._runs):
            await self._stop(each)
        if self._instance is not None:
            await self._ended(self._instance.close)
        self._instance = Instance(self._equipment, writes, None, self._problems)
        self._writes = writes

    async def _stop(self, each: str) -> None:
        ran, instance = self._runs.pop(each, None), self._instance
        if instance is not None:
            await self._ended(lambda: instance.stop(each))
        self._problems.pop(each, None)
        if ran is None or instance is None:
            return
        left = (*self._runs.values(), *self._wanted.created.values())
        for shard in sorted(shards_of(ran.what) - {shard for other in left for shard in shards_of(other.what)}):
            instance.forget(shard)  # nothing reads or writes it any longer: it may be dropped

    async def _ended(self, end: Callable[[], Awaitable[None]]) -> None:
        """Have something end; what an upstream or endpoint raises then is noted, and stops nothing."""
        try:
            await end()
        except Exception as error:  # noqa: BLE001 - also what a library of the endpoint's raises
            self._problems.note(ENDING, reason(error))

    async def _go_on(self) -> None:
        """Begin what is scheduled and does not run, end what is not wanted, and bring everything to the last aim."""
        instance = self._instance
        if instance is None:
            return
        for each, runs in list(self._runs.items()):
            stopped = each in self._wanted.stopped
            if stopped or self._wanted.created.get(each) != runs or not self._may_run(runs):
                await self._stop(each)
        self._wanted.stopped.clear()
        for each in [each for each in self._wanted.created if each not in self._runs or not instance.runs(each)]:
            if self._may_run(self._wanted.created[each]):
                await self._begin(instance, self._wanted.created[each])
                if instance.runs(each):
                    self._begun, self._advanced = None, None  # it was not there when the rest was brought to the aim
        aim = self._aim
        if aim is None or self._advanced == aim.turn:
            return
        if self._begun != aim.turn:  # what is late then follows by itself
            deadline = Deadline(self._equipment.client.clock, SLICE_S)
            await instance.look(shared=True)
            await instance.ingest(aim, deadline)
            await instance.maintain(Frontier(aim.time + 1), deadline)
            await instance.deliver(deadline)
            self._begun = aim.turn  # had it failed, it would be tried again
        instance.ended()  # sessions that a newer one has ended are opened anew, if they are to run here
        if aim is self._aim and not instance.going_on():
            self._advanced = aim.turn

    def _may_run(self, wanted: Create) -> bool:
        """Return whether what is wanted may run here now.

        What may not write yet does not: a next version is prepared by a process of its own.
        """
        begun = wanted.id in self._wanted.scheduled
        allowed = wanted.id in self._wanted.writing or isinstance(wanted.what, RunIndex)
        return begun and allowed and (self._alone or not wanted.alone)

    async def _begin(self, instance: Instance, wanted: Create) -> None:
        if instance.runs(wanted.id):
            return
        try:
            async with self._problems.of(wanted.id):
                self._runs[wanted.id] = wanted
                await instance.start(wanted.id, wanted.what)
                self._problems.note(wanted.id, "")
        except FencedError as error:
            self._problems.note(wanted.id, reason(error))

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _standing(self) -> Standing:
        instance = self._instance
        if instance is None:
            return Standing()
        report = instance.report()
        return Standing(
            self._written(report.frontiers),
            instance.needed(),
            self._advanced,
            {**self._problems, **self._upkeep()},
            instance.under_way(),
            instance.counters(),
            instance.disagreements(),
            instance.writers(),
            {name: tuple(said) for name, said in report.notices.items()},
            report.added,
        )

    def _upkeep(self) -> dict[str, str]:
        found = self._equipment.client.problems()
        said = "; ".join(f"shard {shard!r}: {why}" for shard, why in sorted(found.items()))
        return {UPKEEP: said} if said else {}

    def _written(self, frontiers: Mapping[str, Frontier]) -> dict[str, Frontier]:
        """Return how far each export is of what runs here; ``frontiers``: how far each item is, by its name."""
        found: dict[str, Frontier] = {}
        for each in self._runs.values():
            names = [output.name.lower() for output in outputs_of(each.what)] or [each.id]
            found |= {e: frontiers[name] for e, name in zip(each.exports, names, strict=True) if name in frontiers}
        return found

    async def _send(self, connection: Connection, message: Response) -> None:
        try:
            await connection.carrier.send(encode(message))
        except Disconnected:
            if connection is self._connection:
                self._connection = None  # what runs goes on, for the next one


def command(said: Command | Response | Unknown) -> Command | Unknown:
    """Return what was said as a command; what is none of this version's is `Unknown`, and is refused by its name."""
    if isinstance(said, Command | Unknown):
        return said
    return Unknown(type(said).__name__)
