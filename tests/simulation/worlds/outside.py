"""What lies outside the world of the whole system: upstreams that forget, endpoints of two kinds, weather over stores.

All of it survives every crash of its users.  Each call is an I/O point of the simulation, so it may be lost, be late,
or take effect while its caller gets no answer; callers get `Unavailable` then, as the contracts of readers and drivers
say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Determinate, FencedError, StoreError, Unavailable
from strandline.frontier import Offsets
from strandline.materialize.driver import Applied
from strandline.materialize.protocol.messages import (
    EXISTS,
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Load,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, Binding, Checkpoint, MaterializationSpec
from strandline.materialize.stores import second_row
from strandline.persist.handles.contents import Rows
from strandline.sources.reader import Records
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus, Mismatch, Versioned
from strandline.testing.endpoints import (
    Endpoint,
    KeyValueSession,
    MemoryDriver,
    MemorySession,
    StagingSession,
    key_of,
)
from strandline.testing.lists.list_source import ListReader, Upstream, Withdrawn, undecodable
from strandline.testing.simulation.kernel import CHANGE, NEVER_MS, READ, Fate, IoPoint, nothing, run_sync

T = TypeVar("T")
Row = dict[str, Any]

AT_ONCE: Final = tuple(fate for fate in Fate if fate not in (Fate.LATE, Fate.CRASH_LATE))
"""The fates of a change that its endpoint never does late: it has no way to refuse what is."""


async def asked(
    site: str, call: Callable[..., Coroutine[Any, Any, T]], arguments: tuple[object, ...], fates: tuple[Fate, ...]
) -> T:
    """Ask the outside.  Raises `Unavailable` where the answer does not come."""
    try:
        return await IoPoint(site, tuple(map(str, arguments)), lambda: run_sync(call(*arguments)), fates)
    except StoreError as error:
        raise Unavailable(str(error)) from error


# ---- upstreams -------------------------------------------------------------------------------------------------------


@dataclass
class FickleUpstream(Upstream):
    """An `Upstream` that may go back for a while (``hidden`` of the newest messages of each partition) or lose data."""

    hidden: int = 0
    lost: Offsets = NOTHING_READ
    _come_to: dict[str, list[Counter[Any]]] = field(default_factory=dict)

    @property
    def frontier(self) -> Offsets:
        """How far it can be read now."""
        ends = {partition: max(0, len(values) - self.hidden) for partition, values in self.partitions.items()}
        return Offsets({partition: end for partition, end in ends.items() if end})

    def come_to(self, partition: str) -> list[Counter[Any]]:
        """Return what the first messages of a partition come to, for 0, 1, 2 … of them: rows, and errors by their text.

        Written down as messages come, so what upstream loses or forgets is in it for ever.
        """
        found = self._come_to.setdefault(partition, [Counter()])
        for offset, message in enumerate(self.partitions.get(partition, ())[len(found) - 1 :], len(found) - 1):
            back = isinstance(message, Withdrawn)
            at, value = (message.offset, message.value) if isinstance(message, Withdrawn) else (offset, message)
            what = undecodable(partition, at) if value is None else (partition, at, value)
            found.append(found[-1] - Counter([what]) if back else found[-1] + Counter([what]))
        return found

    def standing(self, *, undecodable: bool) -> list[tuple[str, Withdrawn]]:
        """Return the messages, good ones or undecodable ones, that nothing took back yet, as what would do so."""
        found = []
        for partition, messages in self.partitions.items():
            gone = {message.offset for message in messages if isinstance(message, Withdrawn)}
            for offset, message in enumerate(messages):
                if not isinstance(message, Withdrawn) and offset not in gone and (message is None) is undecodable:
                    found.append((partition, Withdrawn(offset, message)))
        return found

    def lose(self) -> None:
        """Forget everything, committed or not: what was not read can never be read."""
        self.lost = super().frontier
        self.forgotten = self.forgotten.join(self.lost)


class SimReader:
    """A `SourceReader` whose every call is an I/O point; ``committed`` is called with what upstream may forget."""

    bounded = True

    def __init__(self, upstream: FickleUpstream, committed: Callable[[Offsets], None]) -> None:
        self._inner = ListReader(upstream)
        self._committed = committed

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return self._inner.records(table)

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`."""
        return await self._inner.snapshot(table)

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        return await asked("upstream.frontier", self._inner.upstream_frontier, (), READ)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""

        async def read(_: object) -> Rows:
            return await self._inner.read(slices, table=table, locate=locate)

        return await asked("upstream.read", read, ((slices, table, locate),), READ)

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""

        async def commit(offsets: Offsets) -> None:
            self._committed(offsets)
            await self._inner.commit(offsets)

        await asked("upstream.commit", commit, (resume,), CHANGE)

    async def close(self) -> None:
        """See `SourceReader.close`."""

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()


# ---- endpoints -------------------------------------------------------------------------------------------------------


@dataclass
class Place(Endpoint):
    """What is durable at an endpoint, and which calls broke the protocol (``broken``).

    ``fences`` and ``checkpoints``: by task, of those that keep their own.  ``owners``: whose rows a resource holds, by
    state key.
    """

    fences: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    down: bool = False
    broken: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        """Keep it for the laws: a task must not take it for a refusal."""
        self.broken.append(what)


class SimDriver(MemoryDriver):
    """The driver of a `Place`; ``session`` is the kind of session that it opens."""

    def __init__(self, place: Place, session: type[SimSession]) -> None:
        super().__init__(place, session)
        self._place = place
        self._kind = session.kind

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        """Empty what holds the rows of another incarnation, unless the session does so with its first commit."""

        async def fit(_: object) -> Applied:
            for binding in spec.bindings:
                self.fits(binding)
                if self._place.owners.get(binding.resource) != binding.state_key:
                    self._place.tables.pop(binding.resource, None)
                    self._place.owners[binding.resource] = binding.state_key
            return Applied()

        if self._kind == CheckpointSession.kind:
            return Applied()
        return await asked(f"{self._kind}.apply", fit, (spec.name,), AT_ONCE)

    def fits(self, binding: Binding) -> None:
        """Raise if ``binding`` cannot have its table, at the moment when it would get it."""

    def checkpoint(self, task: str) -> Checkpoint | None:
        """Return the checkpoint that the endpoint keeps, if it does."""
        return self._place.checkpoints.get(task)


class SimSession(MemorySession):
    """What the sessions share: each message that changes or asks something is an I/O point."""

    fates: tuple[Fate, ...] = CHANGE
    kind = "endpoint"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place

    async def ask(self, message: Request) -> list[Response]:
        """Do what the message says, at an I/O point if it goes to the endpoint now."""

        async def do(_: object) -> list[Response]:
            if self.place.down:
                raise Determinate("the endpoint does not answer")
            return self.answers(message)

        if isinstance(message, Flush) or not self.reaches(message):
            return self.answers(message)
        fates = READ if isinstance(message, Load) else self.fates
        return await asked(f"{self.kind}.{type(message).__name__}", do, (self.name,), fates)

    async def receive(self) -> Response:
        """Return the next answer, as soon as the driver has given it."""
        if not self._answers:
            await IoPoint(f"{self.kind}.receive", (), nothing, (Fate.DONE,), NEVER_MS, ready=self.answered)
        return await super().receive()

    def answered(self) -> bool:
        """Return whether an answer waits to be received."""
        return len(self._answers) > 0

    def reaches(self, message: Request) -> bool:
        """Tell whether ``message`` goes to the endpoint now."""
        return True


class CheckpointSession(SimSession):
    """Pattern 1: rows and checkpoint change together, under a fence; what comes under an older one is refused."""

    kind = "checkpointing"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._fence = 0
        self._stores: list[Store] = []

    def reaches(self, message: Request) -> bool:
        """Only what opens, asks and commits."""
        return isinstance(message, Open | Load | StartCommit)

    def answers(self, message: Request) -> list[Response]:
        """Do what ``message`` says and return the answers."""
        match message:
            case Open():
                self._fence = self.place.fences[self.name] = self.place.fences.get(self.name, 0) + 1
                return [Opened(self.place.checkpoints.get(self.name, NOTHING), refuses=True), Acknowledged()]
            case Acknowledge():
                return []
            case Load():
                return self.loaded(message)
            case Flush():
                return [Flushed()]
            case Store():
                self._stores.append(message)
                return []
            case StartCommit(checkpoint):
                self._commit(checkpoint)
                return [Acknowledged()]

    async def ask(self, message: Request) -> list[Response]:
        """See `SimSession.ask`; that a commit has begun is answered before it has ended."""
        if isinstance(message, StartCommit):
            self.say(StartedCommit())
        return await super().ask(message)

    def _commit(self, checkpoint: Checkpoint) -> None:
        if self.place.fences[self.name] != self._fence:
            raise FencedError(f"{self.name!r} was fenced off by another session")
        before = self.place.checkpoints.get(self.name, NOTHING)
        for binding in self.bindings:
            if before.of(binding.state_key) is None:
                self.place.tables.pop(binding.resource, None)
        for store in self._stores:
            self._refuse_second_rows(self.bindings[store.binding], store.rows)
        for store in self._stores:
            self.place.store(self.bindings[store.binding], store.rows.to_pylist())
        self._stores = []
        self.place.checkpoints[self.name] = checkpoint
        self.place.commits += 1

    def _refuse_second_rows(self, binding: Binding, rows: pa.Table) -> None:
        """Refuse the transaction if a key that is to be new is there, as `messages.Store` demands."""
        table = self.place.tables.get(binding.resource, {})
        new = rows.filter(pc.invert(rows[EXISTS]))
        known = [at for at, row in enumerate(new.to_pylist()) if key_of(binding, row) in table]
        if known:
            raise second_row(binding, new.take(known))


class StagedSession(SimSession, StagingSession):
    """Pattern 3: rows are staged under a fresh name, and applied once when the runtime's log has committed the name."""

    kind = "staging"

    def reaches(self, message: Request) -> bool:
        """Only what asks, stages and applies."""
        applies = isinstance(message, Acknowledge) and self.state.get("staged") is not None
        return applies or isinstance(message, Load | StartCommit)

    def apply_staged(self, name: str) -> None:
        """Store the rows that were staged, but those of a table that holds another binding's by now."""
        for binding, rows in self.place.staged[name]:
            if self.place.owners.get(binding.resource, binding.state_key) == binding.state_key:
                self.place.store(binding, rows.to_pylist())


class DirectSession(SimSession, KeyValueSession):
    """Pattern 2: rows are written as they come, one by one; a crash leaves some of them."""

    kind = "direct"
    fates = AT_ONCE

    def reaches(self, message: Request) -> bool:
        """Only what asks and writes."""
        return isinstance(message, Load | Store)


SESSIONS: Final[dict[str, type[SimSession]]] = {
    "checkpointing": CheckpointSession,
    "staging": StagedSession,
    "direct": DirectSession,
}


# ---- weather ---------------------------------------------------------------------------------------------------------


class Weather:
    """Whether the stores can be reached at all."""

    def __init__(self) -> None:
        self.out = False

    def check(self) -> None:
        """Raise `Determinate` during an outage."""
        if self.out:
            raise Determinate("the store cannot be reached")


class ExposedBlob:
    """A Blob under the weather."""

    def __init__(self, inner: Blob, weather: Weather) -> None:
        self._inner = inner
        self._weather = weather

    async def get(self, key: str) -> bytes | None:
        """See `Blob.get`."""
        self._weather.check()
        return await self._inner.get(key)

    async def set(self, key: str, data: bytes) -> None:
        """See `Blob.set`."""
        self._weather.check()
        await self._inner.set(key, data)

    async def delete(self, key: str) -> bool:
        """See `Blob.delete`."""
        self._weather.check()
        return await self._inner.delete(key)

    async def list(self, prefix: str) -> list[str]:
        """See `Blob.list`."""
        self._weather.check()
        return await self._inner.list(prefix)


Ambush: TypeAlias = Callable[[CompareAndSet], Awaitable[None]]


class ExposedConsensus:
    """A Consensus under the weather; who lies in wait for a change of some key, by `ambushes`, gets there first."""

    def __init__(self, inner: Consensus, weather: Weather, ambushes: dict[str, Ambush] | None = None) -> None:
        self._inner = inner
        self._weather = weather
        self._ambushes = {} if ambushes is None else ambushes

    async def head(self, key: str) -> Versioned | None:
        """See `Consensus.head`."""
        self._weather.check()
        return await self._inner.head(key)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """See `Consensus.compare_and_set`."""
        self._weather.check()
        return await self._inner.compare_and_set(request)

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """See `Consensus.compare_and_set_many`."""
        self._weather.check()
        for request in requests:
            if strike := self._ambushes.pop(request.key, None):
                await strike(request)
        return await self._inner.compare_and_set_many(requests)

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """See `Consensus.scan`."""
        self._weather.check()
        return await self._inner.scan(key, start, limit)

    async def truncate(self, key: str, seqno: int) -> int:
        """See `Consensus.truncate`."""
        self._weather.check()
        return await self._inner.truncate(key, seqno)

    async def list_keys(self) -> list[str]:
        """See `Consensus.list_keys`."""
        self._weather.check()
        return await self._inner.list_keys()
