"""The runtime of one split of a materialization: the actor that performs the actions of `fsm`; only it awaits I/O.

`Task.advance` moves the endpoint to the newest time up to which every bound collection is complete, or finds that there
is nothing to do.  A loop of the instance calls it.  It returns when that transaction is acknowledged, so its rows are
durable and readable at the endpoint.  While the endpoint commits, the next transaction is read and its keys are loaded.
So one may be under way when `advance` returns, and the next call continues it; if none is, the log records that
everything is acknowledged.

A window is read in batches of bounded size, checked, and put aside (`Transfer`); when all are checked, the extent
becomes durable and they are sent.  So neither side ever holds a whole first sync in memory.

After an error the session is closed and the next `advance` opens a new one, which fences the old session and continues
from the checkpoint.  Only `FencedError` is final, because another runtime has taken over the task.

Laws: M2, M3, M5.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import pyarrow.compute as pc

from strandline.errors import ConfigError, FencedError, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.materialize.driver import Driver, Session, require_all
from strandline.materialize.feed import Feed, complete
from strandline.materialize.log import Record, RecoveryLog
from strandline.materialize.protocol import messages, states
from strandline.materialize.protocol.fsm import step
from strandline.materialize.protocol.greatest import NOT_KNOWN, Greatest, greater, ordered
from strandline.materialize.protocol.holds import Holds
from strandline.materialize.protocol.messages import Request, Response
from strandline.materialize.protocol.refusals import REFILL_ALL
from strandline.materialize.protocol.task import (
    NOTHING,
    WHOLE,
    Checkpoint,
    KeyRange,
    MaterializationSpec,
    Progress,
    StateUpdate,
)
from strandline.materialize.reduced import Reduced
from strandline.materialize.status import FAILED, Counts, Moving, Status, unwatched
from strandline.materialize.stores import second_row
from strandline.materialize.transfer import Transfer
from strandline.problem import Problem, Stopped, joined
from strandline.store.clock import Beside, Inline, Running

Kept: TypeAlias = Callable[[Response], Response]
"""Puts the rows of an answer aside, and returns the rest of it."""


class Line:
    """One session, and the one runtime that talks to it.  It raises what the session raises, at each later call.

    Neither side ever waits for the other in a circle.  From the first message on, an answer is awaited beside the
    runtime (`Beside`), so a driver can always send its answer, however long the runtime sends.  A message whose work
    may take long is *posted*: it is also sent beside the runtime, and the next message waits for it.

    The answers that a driver sends unasked are not bounded by the runtime's pace: the only large answer, `Loaded`, goes
    through ``kept``, which puts its rows aside.
    """

    def __init__(self, session: Session, beside: Beside, kept: Kept) -> None:
        self._session = session
        self._beside = beside
        self._kept = kept
        self._came: deque[Response] = deque()
        self._posted: list[Running] = []  # each waits for the one before it
        self._receiving: Running | None = None
        self._error: BaseException | None = None

    async def send(self, message: Request) -> None:
        """Send a message; return when the driver has taken it."""
        self._listen()
        if self._posted:
            await self._posted[-1].wait(None)
            self._posted.clear()
        self._check()
        await self._session.send(message)

    async def post(self, message: Request) -> None:
        """Send a message beside the caller, after those that were posted before."""
        self._listen()
        previous = self._posted[-1] if self._posted else None

        async def sent() -> None:
            if previous is not None:
                await previous.wait(None)
            try:
                if self._error is None:
                    await self._session.send(message)
            except CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - the runtime raises it, also what ends a process
                self._error = error
                if self._receiving is not None:
                    await self._receiving.cancel()  # no answer to it will come

        self._posted.append(self._beside(sent))
        await self._posted[-1].wait(0)  # without an event loop it is sent now

    async def receive(self, seconds: float | None = None) -> Response | None:
        """Return the driver's next message; None if none came within ``seconds``."""
        self._listen()
        while not self._came:
            self._check()
            assert self._receiving is not None, "an answer is waited for from the first message on"
            if not await self._receiving.wait(seconds) and seconds is not None:
                return None
        return self._came.popleft()

    async def halt(self) -> None:
        """End what goes on beside the runtime; nothing but `close` may follow."""
        self._error = self._error or Unavailable("this session was ended; the next one goes on from what is committed")
        for running in (*reversed(self._posted), *([] if self._receiving is None else [self._receiving])):
            await running.cancel()

    async def close(self) -> None:
        """End the conversation, and what is under way in it."""
        await self.halt()
        await self._session.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _listen(self) -> None:
        if self._receiving is None:
            self._receiving = self._beside(self._receive)

    async def _receive(self) -> None:
        """Receive one message, and have the next one waited for."""
        try:
            self._came.append(self._kept(await self._session.receive()))
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - see above
            self._error = error
        else:
            self._receiving = self._beside(self._receive)


Answer = TypeVar("Answer")

APPLY_ROUNDS_MAX: Final = 100
"""If a driver still returns a state after this many rounds of Apply, Apply counts as failed."""
LOOK_S: Final = 0.1
"""How often is looked, while an endpoint commits, whether there is a next transaction to read."""


AHEAD: Final = Problem(
    "endpoint-ahead",
    "the endpoint of {item!r} has changes up to {at}, and this location sent none after {sent}: it was restored from a "
    "backup, or copied",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)


class HasSplitsError(Unavailable):
    """The log says that the task has splits, so no one has all of it: the one that asks has to join them."""


class Task:
    """One split of a task, or all of it.

    ``range_``: the key range that the split has; its ``feeds`` have these rows and no others.  ``watch`` is called with
    the status after every batch that was read or sent; it must not raise or block.
    """

    def __init__(
        self,
        spec: MaterializationSpec,
        driver: Driver,
        log: RecoveryLog,
        feeds: Sequence[Feed],
        watch: Callable[[Status], None] = unwatched,
        beside: Beside = Inline,
        range_: KeyRange = WHOLE,
    ) -> None:
        names = [(f.name, f.schema) for f in feeds]
        if names != [(b.collection, b.schema) for b in spec.bindings]:
            raise InvalidUsage(
                f"materialization {spec.name!r} needs one feed per binding, in order, of the same schema"
            )
        self._spec = spec
        self._range = range_
        self._driver = driver
        self._log = log
        self._feeds = tuple(feeds)
        self._reduced = [Reduced(binding) if binding.reduce else None for binding in spec.bindings]
        self._holds: tuple[Holds, ...] = ()
        self._machine = self._closed()
        self._watch = watch
        self._beside = beside
        self._line: Line | None = None
        self._transfers: dict[int, Transfer] = {}
        self._failure: BaseException | None = None
        self._loads_all = False
        self._position = 0
        self._checkpoint = 0
        self._moving = Moving()
        self._sent = Counts()
        self._committed = Counts()
        self._applied: tuple[str, ...] = ()
        self._before = 0  # how many transactions were committed before the spec was applied

    @property
    def status(self) -> Status:
        """The task's position and counts."""
        failed = self._failure is not None
        return Status(
            name=self._spec.name,
            phase=FAILED if failed else type(self._machine.head).__name__,
            checkpoint=self._checkpoint,
            position=self._position,
            committed=self._committed,
            moving=self._moving,
            applied=self._applied,
            error=str(self._failure) or type(self._failure).__name__ if failed else None,
            waits=joined(feed.waits for feed in self._feeds),
        )

    @property
    def under_way(self) -> bool:
        """Whether a transaction is, which the next `advance` goes on with."""
        return self._line is not None and not self._machine.rests

    @property
    def record(self) -> Record:
        """What the log has, once it is open."""
        return self._log.record

    @property
    def checkpoint(self) -> Checkpoint:
        """The endpoint's checkpoint, while nothing is under way.  The log's may be older (`fsm`)."""
        assert isinstance(self._machine.head, states.Idle), "nothing is under way"
        return self._machine.head.progress.checkpoint

    @property
    def begun(self) -> tuple[str, ...]:
        """The state keys that the endpoint's checkpoint has, while no transaction is under way."""
        return self._machine.begun

    @property
    def untouched(self) -> bool:
        """Whether the endpoint was given nothing yet, while no transaction is under way."""
        return not self._machine.begun and not self._machine.replays

    @property
    def replays_to(self) -> int:
        """Where a transaction ends that was cut off and is to be done again; 0: there is none."""
        return self._machine.replays_to

    async def open(self) -> None:
        """Recover: take the log over, apply the spec to the endpoint, begin a session.  `advance` calls it if needed.

        Raises:
            FencedError: a newer runtime has the task.
            DefinitionError: the endpoint cannot hold a collection, or holds something else under its name.
            Unavailable: the endpoint or the log does not answer.
            HasSplitsError: the task has splits.
        """
        await self._guarded(self._open)

    async def advance(self, upto: int | None = None) -> bool:
        """Bring the endpoint to where its collections are now; return whether its position moved.

        That is one transaction, and one more if another one was under way.

        Args:
            upto: come to this time and no further; all collections are complete up to there.

        Raises:
            FencedError: a newer runtime has the task; stop.
            CollectionError, AsOfError, DefinitionError: see `Feed.changes` and `stores.to_store`; nothing is done.
            Unavailable: the endpoint or the log does not answer; committed rows stay committed, call again later.
        """
        return await self._guarded(partial(self._advance, upto))

    async def settle(self, upto: int | None = None) -> int:
        """Commit all up to ``upto``, even if nothing has changed, and rest; return the time of the checkpoint.

        Without ``upto``: up to where the collections are complete once nothing is under way.

        Raises as `advance`, and `Unavailable` if the endpoint is past ``upto``.
        """
        return await self._guarded(partial(self._settle, upto))

    async def halt(self) -> None:
        """End what goes on beside the caller: the next `advance` fails, and that after it opens a new session."""
        if self._line is not None:
            await self._line.halt()

    async def close(self) -> None:
        """End the session.  Nothing that was acknowledged is lost."""
        await self._drop()

    # -----------------------------------------------------------------------------------------------------------------

    async def _guarded(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        if isinstance(self._failure, FencedError):
            raise self._failure
        try:
            answer = await call()
        except BaseException as error:
            self._failure = error
            await self._drop()
            raise
        self._failure = None
        return answer

    def _closed(self) -> states.Machine:
        bindings = tuple(enumerate(self._spec.bindings))
        deltas = frozenset(place for place, binding in bindings if binding.delta)
        reduces = frozenset(place for place, binding in bindings if binding.reduce)
        return states.Machine(self._spec.state_keys, deltas, reduces)

    async def _drop(self) -> None:
        line, self._line = self._line, None
        self._machine = self._closed()
        for transfer in self._transfers.values():
            transfer.close()
        self._transfers.clear()
        if line is not None:
            await line.close()

    async def _open(self) -> None:
        await self._drop()
        record = await self._log.open()
        if record.layout:
            raise HasSplitsError(f"materialization {self._spec.name!r} was given {len(record.layout)} splits")
        verdicts = await self._driver.validate(self._spec)
        require_all(self._spec, verdicts)
        self._holds = tuple(verdict.holds for verdict in verdicts)
        self._applied, self._before = await self._apply(), self._committed.transactions
        self._line = Line(await self._driver.open(), self._beside, self._kept)
        await self._step(states.Start(record.progress, self._log.record.restart))
        while not self._machine.rests:
            await self._answered()

    async def _apply(self) -> tuple[str, ...]:
        done: list[str] = []
        for _ in range(APPLY_ROUNDS_MAX):
            applied = await self._driver.apply(self._spec, self._log.record.state)
            if applied.action:
                done.append(applied.action)
            if applied.state is None:
                return tuple(done)
            await self._persist(self._log.record.progress, applied.state)
        raise Unavailable(f"materialization {self._spec.name!r}: the driver's Apply does not come to an end")

    async def _advance(self, upto: int | None) -> bool:
        if self._line is None:
            await self._open()
        before, wanted = self._position, await self._complete(upto)
        while self._position < wanted:
            idle = isinstance(self._machine.head, states.Idle)
            due = self._machine.due(await self._complete(upto)) if idle else None
            if due is not None:
                await self._extend(states.Extend(due))
            elif self._machine.rests:
                break
            else:
                await self._answered(LOOK_S if idle else None)
        await self._confirm()
        return self._position != before

    async def _confirm(self) -> None:
        """Have the log say that the endpoint has acknowledged what was committed last, unless a transaction follows.

        Other processes learn it there.  A transaction that follows says it with its extent.
        """
        head = self._machine.head
        if isinstance(head, states.Idle) and self._machine.rests and self._log.record.progress.committing:
            await self._persist(head.progress, None)

    async def _settle(self, upto: int | None) -> int:
        if self._line is None:
            await self._open()
        while not isinstance(self._machine.head, states.Idle):
            await self._answered()
        wanted = await self._complete(upto)
        while (due := self._machine.due(wanted, settles=True)) is not None or not self._machine.rests:
            if due is not None:
                await self._extend(states.Extend(due, settles=True))
            else:
                await self._answered()
        if any(self.checkpoint.of(key) != wanted for key in self._spec.state_keys):
            raise Unavailable(f"{self._spec.name!r} is at {self._position}, past {wanted}; it is tried again")
        return wanted

    async def _extend(self, event: states.Extend) -> None:
        self._sent, self._moving = Counts(transactions=1), Moving()
        await self._step(event)

    async def _complete(self, upto: int | None) -> int:
        """Return the time that every bound collection is complete up to; ``upto`` if that is given.

        What was cut off was read up to its end.  A collection that has come since, and cannot be read so far yet, takes
        no part in the replay, and is not waited for.
        """
        return max(await complete(self._feeds) if upto is None else upto, self.replays_to)

    async def _step(self, first: states.Event) -> None:
        """Step and act until only an answer of the driver, or another window, can bring it on."""
        events = deque([first])
        while events:
            self._machine, actions = step(self._machine, events.popleft())
            for action in actions:
                event = await self._perform(action)
                if event is not None:
                    events.append(event)
        self._reached()

    def _reached(self) -> None:
        """Note how far the endpoint is, once what it was given before is acknowledged."""
        match self._machine.head:
            case states.Idle(progress, position) if isinstance(self._machine.tail, states.Done):
                self._moving = Moving()
            case states.Extending(progress, position) | states.Flushing(progress, position):
                if not isinstance(self._machine.tail, states.Done):
                    return
            case _:
                return
        keys = self._spec.state_keys
        self._position, self._checkpoint = position.time(keys), progress.checkpoint.time(keys)
        if self._committed.transactions > self._before and all(progress.checkpoint.of(key) is not None for key in keys):
            self._applied = ()  # each table has been filled since: what was done to it is over

    async def _answered(self, seconds: float | None = None) -> None:
        """Go on with the driver's next answer, if it comes within ``seconds``."""
        assert self._line is not None, "a session is open"
        response = await self._line.receive(seconds)
        if isinstance(response, messages.Opened):
            await self._refuse_ahead(response.checkpoint)
            self._loads_all = response.loads_all
        if response is not None:
            await self._step(response)

    async def _refuse_ahead(self, named: Checkpoint | None) -> None:
        """Refuse an endpoint that has more than this location ever sent: its rows may be of a history that is lost.

        An extent is durable in the log before the first of its rows is sent, so the log is never behind an endpoint,
        unless it is an earlier one: that of a backup, or that of a process which was succeeded since, and which its
        next write to the log fences.
        """
        logged, endpoint = self._log.record.progress, NOTHING if named is None else named
        begun = max(self._log.record.sent, 0 if logged.extent is None else logged.extent.upper)
        for key in self._spec.state_keys:
            sent = max(begun, logged.checkpoint.of(key) or 0, logged.position.of(key) or 0)
            at = endpoint.of(key) or 0
            if at > sent:
                await self._persist(logged, None)
                raise ConfigError(AHEAD.said(item=self._spec.name, at=at, sent=sent))

    def _kept(self, response: messages.Response) -> messages.Response:
        """Put loaded rows aside, if they decide what is stored: a replay may load as many as it has."""
        if not isinstance(response, messages.Loaded) or response.binding not in self._transfers:
            return response
        return replace(response, rows=self._transfers[response.binding].keep(response.rows))

    async def _send(self, message: messages.Request) -> None:
        assert self._line is not None, "a session is open"
        await self._line.send(message)

    async def _post(self, message: messages.Request) -> None:
        assert self._line is not None, "a session is open"
        await self._line.post(message)

    async def _persist(self, progress: Progress, update: StateUpdate | None, greatest: Greatest | None = None) -> None:
        state = self._log.record.state
        await self._log.write(progress, state if update is None else update.apply(state), greatest)

    def _greatest(self, progress: Progress) -> Greatest:
        """Return the greatest keys once the extent of ``progress`` is stored."""
        assert progress.extent is not None, "an extent is made durable"
        known = self._log.record.greatest
        found = dict(known)
        for place, binding in enumerate(self._spec.bindings):
            key = binding.state_key
            if key not in progress.extent.keys:
                continue  # it begins with a later transaction
            if ordered(binding) and (key in known or progress.extent.start.of(key) is None):
                transfer = self._transfers.get(place)
                found[key] = greater(known.get(key), None if transfer is None else transfer.greatest)
        return found

    async def _perform(self, action: states.Action) -> states.Event | None:
        """Do one action; return the event that it results in, if any."""
        match action:
            case states.SendOpen():
                await self._send(messages.Open(self._spec, "1", self._range, self._log.record.state))
            case states.SendAcknowledge():
                await self._post(messages.Acknowledge())
            case states.ReadChanges(binding, lower, upper):
                await self._read(binding, lower, upper)
                return states.Read(binding, self._transfers[binding].rows)
            case states.SendLoad(binding, new):
                await self._load(binding, new=new)
            case states.Refuse(loaded):
                # A successor may have stored these very rows: the write fails with `FencedError` if there is one.
                await self._persist(self._log.record.progress, None)
                raise second_row(self._spec.bindings[loaded.binding], loaded.rows)
            case states.SendFlush():
                await self._send(messages.Flush())
            case states.SendStore(binding):
                await self._store(binding)
                return states.Sent(binding)
            case states.SendStartCommit(checkpoint):
                await self._post(messages.StartCommit(checkpoint))
            case states.PersistQuiet(progress):
                await self._persist(progress, None)
                return states.QuietPersisted()
            case states.PersistExtent(progress, state):
                await self._persist(progress, state, self._greatest(progress))
                return states.ExtentPersisted()
            case states.PersistCommit(progress, state):
                await self._persist(progress, state)
                self._committed += self._sent
                return states.CommitPersisted()
            case states.PersistState(progress, state):
                await self._persist(progress, state)
                return states.StatePersisted()
            case states.Hold(binding, time):
                restart = self._log.record.restart
                if restart is not None:
                    time = min(time, restart.of(self._spec.bindings[binding].state_key) or 0)
                # One time earlier: with a hold at T, T - 1 could not be distinguished from T.
                await self._feeds[binding].hold(Frontier(max(0, time - 1)))
        return None

    async def _read(self, binding: int, lower: int, upper: int) -> None:
        """Read a window batch by batch."""
        bound = self._spec.bindings[binding]
        transfer = self._transfers[binding] = Transfer(
            bound, self._reduced[binding], first=not lower, holds=self._holds[binding]
        )
        if lower < upper:
            changes = await self._feeds[binding].changes(lower, upper, key=bound.key, times=bound.by_time)
            self._moved(about=changes.about)
            async with aclosing(changes.batches) as batches:
                async for batch in batches:
                    transfer.add(batch)
                    self._moved(read=batch.num_rows)
        transfer.end()

    async def _load(self, binding: int, *, new: bool) -> None:
        head = self._machine.head
        assert isinstance(head, states.Extending | states.Flushing), "keys are asked for before anything is stored"
        replays = head.progress.extent is not None  # of what it has stored already, nothing is known
        stored = NOT_KNOWN if replays or self._loads_all else self._log.record.greatest
        for keys in self._transfers[binding].asked(new=new, stored=stored):
            await self._send(messages.Load(binding, keys))

    async def _store(self, binding: int) -> None:
        """Send the rows."""
        with closing(self._transfers.pop(binding)) as transfer:
            for rows in transfer.stores():
                await self._send(messages.Store(binding, rows))
                deleted = int(pc.sum(rows[messages.DELETE]).as_py() or 0)
                self._sent += Counts(stored=len(rows) - deleted, deleted=deleted)
                self._moved(sent=len(rows))

    def _moved(self, read: int = 0, about: int = 0, sent: int = 0) -> None:
        now = self._moving
        self._moving = replace(now, read=now.read + read, about=now.about + about, sent=now.sent + sent)
        self._watch(self.status)
