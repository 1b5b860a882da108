"""The endpoints of the world of one materialization: each pattern of the protocol, and a pipe with little room.

What `worlds/outside.py` has, judged at each commit, and besides that an endpoint that is only pushed to, and one that
keeps rows in memory and asks, by its state, to begin from an earlier checkpoint.
"""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from laws.broken import require
from strandline.materialize.log import RESTART
from strandline.materialize.protocol.messages import (
    DELETE,
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
from strandline.materialize.protocol.task import (
    NOTHING,
    Binding,
    Checkpoint,
    MaterializationSpec,
    StateUpdate,
    canonical,
)
from strandline.store.clock import Beside, Running
from strandline.testing.endpoints import Row, key_of
from strandline.testing.simulation.kernel import NEVER_MS, Fate, IoPoint, nothing
from worlds.outside import AT_ONCE, CheckpointSession, DirectSession, Place, SimSession, StagedSession

SUM: Final = json.dumps(
    {"reduce": {"strategy": "merge"}, "properties": {"f": {"type": "number", "reduce": {"strategy": "sum"}}}}
)
"""Of the rows of a key ``f`` is added up, and ``s`` is that of the last one."""


class Judge(Protocol):
    """What judges an endpoint."""

    def judge(self, time: int, when: str) -> None:
        """Hold what the endpoint has against what the collections have before ``time``."""
        ...

    def choose(self, label: str, n: int) -> int:
        """Make a choice of this history."""
        ...


@dataclass
class WatchedPlace(Place):
    """A `Place` that is judged.

    ``pushed``: the transactions that came, in order, with their ends.  ``staged_at``: of each that was staged, what it
    binds and its checkpoint.
    """

    judges: Judge | None = None
    spec: MaterializationSpec | None = None
    pushed: list[tuple[Checkpoint, list[tuple[int, list[Row]]]]] = field(default_factory=list)
    staged_at: dict[str, tuple[tuple[Binding, ...], Checkpoint]] = field(default_factory=dict)
    alone: bool = True
    """Whether one runtime at a time talks to it: else one that was fenced may still say what is no longer so."""

    def wrong(self, what: str) -> None:
        """M1: the runtime says of every row whether it is there."""
        require("M1", not self.alone, what)

    def judged(self, bound: tuple[Binding, ...], checkpoint: Checkpoint, when: str) -> None:
        """Have it judged now, with what is bound, and how far."""
        assert self.judges is not None
        self.judges.judge(checkpoint.time(tuple(each.state_key for each in bound)), when)

    def bindings(self) -> tuple[Binding, ...]:
        """Return the bindings of the task."""
        assert self.spec is not None
        return self.spec.bindings

    def held(self, index: int, time: int) -> list[Row]:
        """Return the rows that a binding's resource has; if it is pushed to, what they add up to before ``time``."""
        binding = self.bindings()[index]
        if not binding.delta:
            return self.rows(binding.resource)
        ends: set[int] = set()
        found: dict[str, tuple[Row, int]] = {}
        for checkpoint, transaction in self.pushed:
            end = checkpoint.time(tuple(each.state_key for each in self.bindings()))
            if end > time or end in ends:
                continue  # it came before, and is the same (`Pushing`)
            ends.add(end)
            for row in (row for at, rows in transaction if at == index for row in rows):
                _add(found, binding, dict(row))
        return [row for row, count in found.values() for _ in range(count)]


def _add(found: dict[str, tuple[Row, int]], binding: Binding, row: Row) -> None:
    """Add a pushed row to what a consumer keeps: by its key, or by the row itself."""
    gone, _, diff = row.pop(DELETE), row.pop(EXISTS), row.pop("__diff", None)
    if binding.reduce:
        before = found.get(key_of(binding, row))
        found[key_of(binding, row)] = (row if before is None else {**row, "f": before[0]["f"] + row["f"]}, 1)
    elif diff is not None:
        kept = canonical(row)
        found[kept] = (row, found.get(kept, (row, 0))[1] + diff)
    else:
        found[key_of(binding, row)] = (row, 0 if gone else 1)


class Checkpointing(CheckpointSession):
    """Pattern 1."""

    place: WatchedPlace

    def _commit(self, checkpoint: Checkpoint) -> None:
        super()._commit(checkpoint)
        require("M3", self.place.fences[self.name] == self._fence, "a session has committed that was fenced off")
        self.place.judged(self.bindings, checkpoint, "at a commit")


class Staging(StagedSession):
    """Pattern 3."""

    place: WatchedPlace

    def answers(self, message: Request) -> list[Response]:
        """See `StagedSession.answers`."""
        found = super().answers(message)
        if isinstance(message, StartCommit):
            self.place.staged_at[self.state["staged"]] = self.bindings, message.checkpoint
        return found

    def apply_staged(self, name: str) -> None:
        """See `StagedSession.apply_staged`."""
        super().apply_staged(name)
        bound, checkpoint = self.place.staged_at[name]
        filled = {each.resource: each.state_key for each in self.bindings}
        same = tuple(each for each in bound if filled.get(each.resource, each.state_key) == each.state_key)
        self.place.judged(same, checkpoint, f"after {name} was applied")


class Pushing(SimSession):
    """Pattern 4: transactions are pushed, perhaps more than once, and nothing can be asked."""

    kind = "pushing"
    fates = AT_ONCE
    place: WatchedPlace

    def __init__(self, place: WatchedPlace) -> None:
        super().__init__(place)
        self._stores: list[tuple[int, list[Row]]] = []

    def reaches(self, message: Request) -> bool:
        """Only what pushes."""
        return isinstance(message, StartCommit)

    def answers(self, message: Request) -> list[Response]:
        """See `MemorySession.answers`."""
        match message:
            case Open():
                return [Opened(None)]
            case Acknowledge():
                return [Acknowledged()]
            case Load():
                require("M1", holds=False, message="an endpoint that is only pushed to was asked for rows")
                return []
            case Flush():
                return [Flushed()]
            case Store(binding, rows):
                self._stores.append((binding, rows.to_pylist()))
                return []
            case StartCommit(checkpoint):
                self._push(checkpoint)
                return [StartedCommit()]

    def _push(self, checkpoint: Checkpoint) -> None:
        """M4: what is pushed again is what was pushed before."""
        rows, self._stores = sorted(self._stores, key=lambda each: (each[0], repr(each[1]))), []
        for before, pushed in self.place.pushed:
            if before == checkpoint:
                require("M4", pushed == rows, f"up to {checkpoint} {pushed} was pushed, and now {rows}")
        self.place.pushed.append((checkpoint, rows))
        self.place.commits += 1


class Buffering(SimSession):
    """Rows lie in memory for some transactions; the endpoint says where it is, which the driver's state knows late."""

    kind = "buffering"
    fates = AT_ONCE
    place: WatchedPlace

    def __init__(self, place: WatchedPlace) -> None:
        super().__init__(place)
        self._stores: list[Store] = []
        self._applied = NOTHING
        self._end = NOTHING

    def reaches(self, message: Request) -> bool:
        """Only what may write."""
        return isinstance(message, Load | Acknowledge)

    def answers(self, message: Request) -> list[Response]:
        """See `MemorySession.answers`."""
        match message:
            case Open():
                self._applied = self.place.checkpoints.get(self.name, NOTHING)
                return [Opened(self._applied)]
            case Acknowledge():
                assert self.place.judges is not None
                if self._stores and self.place.judges.choose("apply", 3):
                    return [Acknowledged(self._named())]
                self._apply()
                return [Acknowledged(self._named())]
            case Load():
                self._apply()
                return self.loaded(message)
            case Flush():
                return [Flushed()]
            case Store():
                self._stores.append(message)
                return []
            case StartCommit(checkpoint):
                self._end = checkpoint
                return [StartedCommit(self._named())]

    def _named(self) -> StateUpdate:
        return StateUpdate({RESTART: self._applied.encode()}, merge_patch=True)

    def _apply(self) -> None:
        if self._end == NOTHING:
            return  # nothing was committed by this session: what the state names stays
        stores, self._stores = self._stores, []
        self._applied = self.place.checkpoints[self.name] = self._end
        for store in stores:
            self.place.store(self.bindings[store.binding], store.rows.to_pylist())
        self.place.commits += 1
        self.place.judged(self.bindings, self._end, "after rows were applied")


class Piped:
    """A session behind a pipe that takes ``room`` messages either way: a driver that cannot answer does not read."""

    def __init__(self, inner: SimSession, room: int, beside: Beside) -> None:
        self._inner = inner
        self._room = room
        self._beside = beside
        self._there: deque[Request] = deque()
        self._back: deque[Response] = deque()
        self._running: list[Running] = []
        self._error: Exception | None = None

    async def send(self, message: Request) -> None:
        """See `Session.send`."""
        if not self._running:
            self._running = [self._beside(self._work), self._beside(self._answer)]
        await _when(lambda: self._error is not None or len(self._there) < self._room)
        if self._error is not None:
            raise self._error
        self._there.append(message)

    async def receive(self) -> Response:
        """See `Session.receive`."""
        await _when(lambda: bool(self._back) or (self._error is not None and not self._inner.answered()))
        if self._back:
            return self._back.popleft()
        assert self._error is not None
        raise self._error

    async def close(self) -> None:
        """See `Session.close`."""
        for running in self._running:
            await running.cancel()
        await self._inner.close()

    async def _work(self) -> None:
        """Do what one message after the other says, once all answers to what came before are in the pipe."""
        try:
            while True:
                await _when(lambda: bool(self._there) and not self._inner.answered())
                await self._inner.send(self._there.popleft())
        except CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the runtime raises it
            self._error = error

    async def _answer(self) -> None:
        while True:
            await _when(lambda: self._inner.answered() and len(self._back) < self._room)
            self._back.append(await self._inner.receive())


async def _when(ready: Callable[[], bool]) -> None:
    """Return as soon as ``ready`` holds."""
    if not ready():
        await IoPoint("pipe.wait", (), nothing, (Fate.DONE,), NEVER_MS, ready=ready)


@dataclass(frozen=True, slots=True)
class Pattern:
    """An endpoint: the sessions that it has, what is bound, and whether several runtimes may talk to it at once."""

    session: type[SimSession]
    deltas: bool = False
    shared: bool = True
    reduces: bool = False

    def spec(self, spec: MaterializationSpec) -> MaterializationSpec:
        """Return ``spec`` as this endpoint takes it: one binding has the changes, the other one each key's last row."""
        first, second = spec.bindings
        if self.reduces:
            bound = (replace(each, key=("k",), delta=self.deltas, reduce=SUM) for each in (first, second))
            return replace(spec, bindings=tuple(bound))
        if not self.deltas:
            return spec
        return replace(spec, bindings=(replace(first, delta=True, diffs=True, key=()), replace(second, delta=True)))


PATTERNS: Final = {
    "checkpointing": Pattern(Checkpointing),
    "staging": Pattern(Staging),
    "direct": Pattern(DirectSession, shared=False),
    "pushing": Pattern(Pushing, deltas=True),
    "buffering": Pattern(Buffering, shared=False),
    "reducing": Pattern(Checkpointing, reduces=True),
    "reducing in stages": Pattern(Staging, reduces=True),
    "pushing what is reduced": Pattern(Pushing, deltas=True, reduces=True),
}
