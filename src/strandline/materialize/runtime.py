"""The runtime of one materialization: the actor that does what `fsm` asks for, and the only file here that awaits I/O.

`Materialization.advance` moves the endpoint to the newest time that every bound collection is complete up to, in one
transaction, or finds that there is nothing to do.  It never spawns: the environment's tick calls it.  It returns when
the transaction is acknowledged, so what it did is durable and readable at the endpoint.

A window is read in batches of bounded size, checked, and put aside in a `Spool`; when all of it is known to be right,
the extent becomes durable and the batches are sent.  So neither side ever holds a first sync in memory as a whole.

After an error the session is gone and the next `advance` opens a new one, which fences whatever the old one may still
do and goes on from the checkpoint; only `FencedError` is final, because somebody else is doing our work.

Source: design page "materialize".   Laws: M2, M3, M5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import FencedError, InvalidUsage, Unavailable
from strandline.frontier.antichain import TIME_MAX, Frontier, meet
from strandline.materialize import messages, states
from strandline.materialize.driver import Driver, Session, require_all
from strandline.materialize.feed import Feed
from strandline.materialize.fsm import step
from strandline.materialize.log import RecoveryLog
from strandline.materialize.spool import Spool
from strandline.materialize.state import StateUpdate
from strandline.materialize.stores import Stores, keys_of, with_existence
from strandline.materialize.task import WHOLE, MaterializationSpec, Progress

Answer = TypeVar("Answer")

APPLY_ROUNDS_MAX: Final = 100
"""A driver that still has state to keep after so many rounds of Apply is not getting anywhere."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Transactions, and the rows in them."""

    transactions: int = 0
    stored: int = 0
    deleted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.transactions + other.transactions, self.stored + other.stored, self.deleted + other.deleted)


@dataclass(frozen=True, slots=True)
class Moving:
    """The transaction under way: rows ``read`` of ``about`` so many updates, and rows ``sent`` to the endpoint.

    ``about`` is an upper bound: updates that cancel each other give no rows.
    """

    read: int = 0
    about: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What people are shown.

    ``checkpoint``: the time before which everything is in the endpoint, as the endpoint or the log says
    it.  ``position``: the same or later; nothing changed in between, so the endpoint is right up to
    here.  ``committed``: by this runtime.  ``moving``: in the transaction under way, or that failed.
    """

    name: str
    phase: str
    checkpoint: int
    position: int
    committed: Counts
    moving: Moving
    applied: tuple[str, ...]
    error: str | None


def unwatched(status: Status) -> None:
    """Look away: what a task calls as it moves on, unless it is given something else."""


class Materialization:
    """One task, one split: the whole key range.

    ``watch`` is called with the status after every batch that was read or sent; it must not raise or block.
    """

    def __init__(
        self,
        spec: MaterializationSpec,
        driver: Driver,
        log: RecoveryLog,
        feeds: Sequence[Feed],
        watch: Callable[[Status], None] = unwatched,
    ) -> None:
        names = [(f.name, f.schema) for f in feeds]
        if names != [(b.collection, b.schema) for b in spec.bindings]:
            raise InvalidUsage(
                f"materialization {spec.name!r} needs one feed per binding, in order, of the same schema"
            )
        self._spec = spec
        self._driver = driver
        self._log = log
        self._feeds = tuple(feeds)
        self._machine = states.Machine(spec.state_keys)
        self._watch = watch
        self._session: Session | None = None
        self._spools: dict[int, Spool] = {}
        self._loaded: dict[int, list[pa.Table]] = {}
        self._failure: BaseException | None = None
        self._position = 0
        self._checkpoint = 0
        self._moving = Moving()
        self._sent = Counts()
        self._committed = Counts()
        self._applied: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """Where it is and what it did."""
        failed = self._failure is not None
        return Status(
            name=self._spec.name,
            phase="Failed" if failed else type(self._machine.head).__name__,
            checkpoint=self._checkpoint,
            position=self._position,
            committed=self._committed,
            moving=self._moving,
            applied=self._applied,
            error=str(self._failure) or type(self._failure).__name__ if failed else None,
        )

    async def open(self) -> None:
        """Recover: take the log over, fit the endpoint, begin a session.  `advance` does it when it must.

        Raises:
            FencedError: a newer runtime has the task.
            DefinitionError: the endpoint cannot hold a collection, or holds something else under its name.
            Unavailable: the endpoint or the log does not answer.
        """
        await self._guarded(self._open)

    async def advance(self) -> bool:
        """Run at most one transaction; tell whether the position moved.

        Raises:
            FencedError: a newer runtime has the task; stop.
            CollectionError, AsOfError, DefinitionError: see `Feed.changes` and `stores.to_store`; nothing was
            committed. Unavailable: the endpoint or the log does not answer; what is committed stays, call again later.
        """
        return await self._guarded(self._advance)

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

    async def _drop(self) -> None:
        session, self._session = self._session, None
        self._machine = states.Machine(self._spec.state_keys)
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()
        self._loaded.clear()
        if session is not None:
            await session.close()

    async def _open(self) -> None:
        await self._drop()
        record = await self._log.open()
        require_all(self._spec, await self._driver.validate(self._spec))
        self._applied = await self._apply()
        self._session = await self._driver.open()
        await self._run(states.Start(record.progress))

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

    async def _advance(self) -> bool:
        if self._session is None:
            await self._open()
        upper = meet([await feed.upper() for feed in self._feeds])
        due = self._machine.due(TIME_MAX if upper.at is None else upper.at)
        if due is None:
            return False
        self._sent, self._moving = Counts(transactions=1), Moving()
        await self._run(states.Extend(due))
        self._moving = Moving()
        return True

    async def _run(self, first: states.Event) -> None:
        """Step and act until nothing is to be done and no answer of the driver is outstanding."""
        events = deque([first])
        while events:
            self._machine, actions = step(self._machine, events.popleft())
            for action in actions:
                event = await self._perform(action)
                if event is not None:
                    events.append(event)
            if not events and self._machine.awaits_driver:
                events.append(await self._receive())
        assert isinstance(self._machine.head, states.Idle), "a run ends between transactions"
        keys = self._spec.state_keys
        self._position = self._machine.head.position.time(keys)
        self._checkpoint = self._machine.head.progress.checkpoint.time(keys)

    async def _receive(self) -> messages.Response:
        assert self._session is not None
        response = await self._session.receive()
        if isinstance(response, messages.Loaded) and response.binding in self._loaded:
            # Only the keys are looked at, and a replay may load as many as the transaction has.
            self._loaded[response.binding].append(keys_of(self._spec.bindings[response.binding], response.rows))
        return response

    async def _send(self, message: messages.Request) -> None:
        assert self._session is not None
        await self._session.send(message)

    async def _persist(self, progress: Progress, update: StateUpdate | None) -> None:
        state = self._log.record.state
        await self._log.write(progress, state if update is None else update.apply(state))

    async def _perform(self, action: states.Action) -> states.Event | None:
        """Do one action; return the event it answers with, if any."""
        match action:
            case states.SendOpen():
                await self._send(messages.Open(self._spec, "1", WHOLE, self._log.record.state))
            case states.SendAcknowledge():
                await self._send(messages.Acknowledge())
            case states.ReadChanges(binding, lower, upper):
                await self._read(binding, lower, upper)
                return states.Read(binding, self._spools[binding].rows)
            case states.SendLoad(binding):
                self._loaded[binding] = []
                for rows in self._spools[binding].tables():
                    await self._send(messages.Load(binding, keys_of(self._spec.bindings[binding], rows)))
            case states.SendFlush():
                await self._send(messages.Flush())
            case states.SendStore(binding):
                await self._store(binding)
                return states.Sent(binding)
            case states.SendStartCommit(checkpoint):
                await self._send(messages.StartCommit(checkpoint))
            case states.PersistQuiet(progress):
                await self._persist(progress, None)
                return states.QuietPersisted()
            case states.PersistExtent(progress, state):
                await self._persist(progress, state)
                return states.ExtentPersisted()
            case states.PersistCommit(progress, state):
                await self._persist(progress, state)
                self._committed += self._sent
                return states.CommitPersisted()
            case states.PersistState(state):
                await self._persist(self._log.record.progress, state)
                return states.StatePersisted()
            case states.Hold(binding, time):
                # One time before: a hold at T would no longer tell T - 1 from T.
                await self._feeds[binding].hold(Frontier(max(0, time - 1)))
        return None

    async def _read(self, binding: int, lower: int, upper: int) -> None:
        """Put aside what is to be stored of a window, batch by batch."""
        bound = self._spec.bindings[binding]
        spool = self._spools[binding] = Spool()
        stores = Stores(bound)
        changes = await self._feeds[binding].changes(lower, upper, key=bound.key)
        self._moved(about=changes.about)
        async with aclosing(changes.batches) as batches:
            async for batch in batches:
                spool.add(stores.add(batch))
                self._moved(read=batch.num_rows)
        last = stores.end()
        if last is not None:
            spool.add(last)

    async def _store(self, binding: int) -> None:
        """Send what was put aside."""
        spool = self._spools.pop(binding)
        loaded = self._loaded.pop(binding, None)
        bound = self._spec.bindings[binding]
        try:
            for rows in spool.tables():
                if loaded is not None:
                    rows = with_existence(bound, rows, pa.concat_tables(loaded) if loaded else rows[:0])  # noqa: PLW2901
                if rows.num_rows:
                    await self._send(messages.Store(binding, rows))
                    deleted = int(pc.sum(rows[messages.DELETE]).as_py() or 0)
                    self._sent += Counts(stored=len(rows) - deleted, deleted=deleted)
                    self._moved(sent=len(rows))
        finally:
            spool.close()

    def _moved(self, read: int = 0, about: int = 0, sent: int = 0) -> None:
        now = self._moving
        self._moving = replace(now, read=now.read + read, about=now.about + about, sent=now.sent + sent)
        self._watch(self.status)
