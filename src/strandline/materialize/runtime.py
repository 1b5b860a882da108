"""The runtime of one materialization: the actor that performs the actions of `fsm`; only it awaits I/O.

`Task.advance` moves the endpoint to the newest time that every bound collection is complete up to, in one
transaction, or finds that there is nothing to do.  It starts no coroutine: a loop of the instance calls it.  It
returns when the transaction is acknowledged, so its rows are durable and readable at the endpoint.

A window is read in batches of bounded size, checked, and kept in a `Spool`; when all batches are checked, the extent
becomes durable and the batches are sent.  So neither side ever holds a whole first sync in memory.

After an error the session is closed and the next `advance` opens a new one, which fences the old session and continues
from the checkpoint.  Only `FencedError` is final, because another runtime has taken over the task.

Laws: M2, M3, M5.
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
from strandline.materialize.driver import Driver, Session, require_all
from strandline.materialize.feed import Feed
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol import messages, states
from strandline.materialize.protocol.fsm import step
from strandline.materialize.protocol.state import StateUpdate
from strandline.materialize.protocol.task import WHOLE, MaterializationSpec, Progress
from strandline.materialize.spool import Spool
from strandline.materialize.stores import Stores, keys_of, second_row, with_existence

Answer = TypeVar("Answer")

APPLY_ROUNDS_MAX: Final = 100
"""If a driver still returns a state after this many rounds of Apply, Apply counts as failed."""


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
    """The transaction in flight: rows ``read``, of about ``about`` updates, and rows ``sent`` to the endpoint.

    ``about`` is an upper bound, because updates that cancel give no rows.
    """

    read: int = 0
    about: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The status for people.

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
    waits: str = ""
    """What its collections wait for; empty if they wait for nothing."""


def unwatched(status: Status) -> None:
    """Ignore a status: the default ``watch`` of a task."""


class Task:
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
        """The task's position and counts."""
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
            waits="; ".join(feed.waits for feed in self._feeds if feed.waits),
        )

    async def open(self) -> None:
        """Recover: take the log over, apply the spec to the endpoint, begin a session.  `advance` calls it if needed.

        Raises:
            FencedError: a newer runtime has the task.
            DefinitionError: the endpoint cannot hold a collection, or holds something else under its name.
            Unavailable: the endpoint or the log does not answer.
        """
        await self._guarded(self._open)

    async def advance(self) -> bool:
        """Run at most one transaction; return whether the position moved.

        Raises:
            FencedError: a newer runtime has the task; stop.
            CollectionError, AsOfError, DefinitionError: see `Feed.changes` and `stores.to_store`; nothing is done.
            Unavailable: the endpoint or the log does not answer; committed rows stay committed, call again later.
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
        """Step and act until no action is left and no answer of the driver is outstanding."""
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
            # Only the keys are used, and a replay may load as many as the transaction has.
            self._loaded[response.binding].append(keys_of(self._spec.bindings[response.binding], response.rows))
        return response

    async def _send(self, message: messages.Request) -> None:
        assert self._session is not None
        await self._session.send(message)

    async def _persist(self, progress: Progress, update: StateUpdate | None) -> None:
        state = self._log.record.state
        await self._log.write(progress, state if update is None else update.apply(state))

    async def _perform(self, action: states.Action) -> states.Event | None:
        """Do one action; return the event that it results in, if any."""
        match action:
            case states.SendOpen():
                await self._send(messages.Open(self._spec, "1", WHOLE, self._log.record.state))
            case states.SendAcknowledge():
                await self._send(messages.Acknowledge())
            case states.ReadChanges(binding, lower, upper):
                await self._read(binding, lower, upper)
                return states.Read(binding, self._spools[binding].rows)
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
                # One time earlier: with a hold at T, T - 1 could not be distinguished from T.
                await self._feeds[binding].hold(Frontier(max(0, time - 1)))
        return None

    async def _read(self, binding: int, lower: int, upper: int) -> None:
        """Read a window batch by batch, and keep the rows to store in the spool."""
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

    async def _load(self, binding: int, *, new: bool) -> None:
        """Ask for the keys in the spool; ``new``: for those that are said to be new, and none may be there."""
        if not new:
            self._loaded[binding] = []
        for rows in self._spools[binding].tables():
            asked = rows.filter(pc.invert(rows[messages.EXISTS])) if new else rows
            if asked.num_rows:
                await self._send(messages.Load(binding, keys_of(self._spec.bindings[binding], asked)))

    async def _store(self, binding: int) -> None:
        """Send the rows of the spool."""
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
