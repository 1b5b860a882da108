"""The stream client: write now, seal later, in the order of the calls.

`StreamClient.create_or_load` gives a writer and a reader of a named collection.  What the writer is asked (`write`,
`seal`, `allow_compaction`) is a plain function: it *enqueues* when it is called and returns a `Call`, to be awaited.
Calls take effect in the order in which they were made, over all collections of a client and its clones; those for one
collection that are pending next to each other share one commit.  A call is resolved when its effect is durable: a
written update, although it is in no read before its time is sealed.

Nothing runs by itself.  Whoever awaits a call drives the line of calls until that one is resolved; who comes second
waits, and takes over if the first one is cancelled.  So a call that nobody awaits is done when a later one is awaited,
or by `stop`.

When the store does not answer, whoever drives is told (`Indeterminate`, `Unavailable`) and the line stands: awaiting
any call tries the same commit again, with the same token, before anything that was called later.  So nothing is ever
skipped or done twice; and a process that gives up leaves a prefix of its calls.

Trap: times are the caller's.  A write at a time that is sealed, by whomever, is refused (`InvalidUsage`) and the calls
behind it go on.  Sealing is monotone: sealing less than is sealed does nothing.

Source: design page "persist" (the stream client).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from strandline.errors import FencedError, InvalidUsage, Stopped, StrandlineError
from strandline.frontier.antichain import EMPTY, TIME_MAX, Frontier
from strandline.persist.batch import Staged
from strandline.persist.client import PersistClient
from strandline.persist.names import KEY, Names
from strandline.persist.read import ReadHandle
from strandline.persist.register import Register
from strandline.persist.state import Fenced
from strandline.persist.unsealed import OWNER, Allow, Pour, Poured, Refused, Seal, Step, Straddling, Write, hold, pour
from strandline.persist.updates import Codec, Update, bounds_of, contents_of
from strandline.persist.write import WriteHandle, fenced
from strandline.store.clock import Clock, Ids

V = TypeVar("V")

RUN_CALLS_MAX: Final = 256
"""How many calls share one commit at most."""
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05
"""How long the second who awaits sleeps before it looks again."""
assert PAUSE_S_MIN <= PAUSE_S_MAX


class Call:
    """Something asked of a client.  Awaiting it returns when it is done and durable; it may be awaited again.

    Raises:
        InvalidUsage: it is refused, for good: it writes at a time that is sealed, or what the codec does not take.
        FencedError: a newer epoch has taken over.
        Indeterminate: it may have happened, or may yet; await it again to learn.
        Unavailable: it did not happen yet; await it again to try.
    """

    def __init__(
        self, line: _Line, run: Callable[[list[Call]], _Run], step: Seal | Allow | tuple[Update[Any], ...]
    ) -> None:
        self.run = run
        self.step = step
        self.done = False
        self.refusal: StrandlineError | None = None
        self._line = line

    def __await__(self) -> Generator[Any, Any, None]:
        return self._line.drive(self).__await__()

    def settle(self, refusal: StrandlineError | None = None) -> None:
        """Take note of its outcome."""
        self.done = True
        self.refusal = refusal


class _Run(Protocol):
    """Calls that share a commit."""

    async def go(self) -> None:
        """Settle them all, or raise and be tried again."""
        ...


class _Line:
    """The calls of a client and its clones, in order; one of those who await drives it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[Call] = deque()
        self._run: _Run | None = None
        self._driven = False
        self.stopped = False
        self.clones = 1

    def enqueue(self, call: Call) -> Call:
        """Take a call.  Raises `Stopped`."""
        if self.stopped:
            raise Stopped("this stream client was stopped: it takes no new calls")
        self._calls.append(call)
        return call

    async def drive(self, call: Call | None = None) -> None:
        """Do what is in line until ``call`` is done (None: everything), and raise its refusal."""
        pause = PAUSE_S_MIN
        while not (call.done if call is not None else self._idle):
            if self._driven:
                await self._clock.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
                continue
            self._driven = True
            try:
                if self._run is None:
                    self._run = self._next()
                await self._run.go()
                self._run = None
            finally:
                self._driven = False
        if call is not None and call.refusal is not None:
            raise call.refusal

    @property
    def _idle(self) -> bool:
        return self._run is None and not self._calls

    def _next(self) -> _Run:
        together = [self._calls.popleft()]
        while self._calls and self._calls[0].run == together[0].run and len(together) < RUN_CALLS_MAX:
            together.append(self._calls.popleft())
        return together[0].run(together)


@dataclass
class _Commit(Generic[V]):
    """A run of calls for one collection: staged once, committed as one pour, whatever becomes of each attempt."""

    writer: WriteHandle
    codec: Codec[V]
    ids: Ids
    calls: list[Call]
    request: Pour
    mine: dict[int, list[Write]] = field(default_factory=dict)
    """By the index of a call: what was staged for it."""

    async def go(self) -> None:
        """See `_Run.go`."""
        await self._stage()
        while steps := self._steps():
            request = replace(self.request, steps=tuple(step for _, step in steps))
            match await self.writer.commit(partial(pour, request=request)):
                case Poured():
                    break
                case Straddling(batches, at):
                    await self._cut(batches, at)
                case Refused(index, upper):
                    await self._refuse(steps[index][0], upper)
                case Fenced() as outcome:
                    self._settle(fenced(self.writer.shard, outcome, self.writer.epoch))
        self._settle()

    def _settle(self, refusal: FencedError | None = None) -> None:
        for call in self.calls:
            if not call.done:
                call.settle(refusal)

    async def _stage(self) -> None:
        """Write the updates of each call, cut where the calls behind it will seal."""
        last = self.writer.state.upper
        for call in self.calls:
            last = max(last, call.step.upper) if isinstance(call.step, Seal) else last
        for index, call in enumerate(self.calls):
            if isinstance(call.step, tuple) and index not in self.mine and not call.done:
                try:
                    self.mine[index] = await self._write(call.step, last)
                except InvalidUsage as error:
                    call.settle(error)  # these are no values of this collection: for good

    async def _write(self, updates: Iterable[Update[V]], at: Frontier) -> list[Write]:
        """Stage updates, those before ``at`` apart from those after."""
        before = [update for update in updates if not at.beyond(update.time)]
        after = [update for update in updates if at.beyond(update.time)]
        return [
            Write(self.ids.fresh("u"), await self.codec.stage(self.writer, each, bounds_of(each)))
            for each in (before, after)
            if each
        ]

    def _steps(self) -> list[tuple[int, Step]]:
        """Return what is left to do, each with the index of its call."""
        steps: list[tuple[int, Step]] = []
        for index, call in enumerate(self.calls):
            if call.done:
                continue
            given = self.mine[index] if isinstance(call.step, tuple) else [call.step]
            steps += [(index, step) for step in given if not isinstance(step, Write) or step.staged.parts]
        return steps

    async def _refuse(self, index: int, upper: Frontier) -> None:
        lower = min((write.staged.lower for write in self.mine[index]), default=upper)
        self.calls[index].settle(
            InvalidUsage(
                f"shard {self.writer.shard!r}: nothing is written at {lower} any more: it is sealed up to {upper}"
            )
        )
        await self.codec.discard(write.staged for write in self.mine[index])

    async def _cut(self, batches: Mapping[str, Staged], at: Frontier) -> None:
        """Cut batches that were written before, and seal beyond: read them, and stage what is before and after."""
        pieces = dict(self.request.pieces)
        for name, staged in sorted(batches.items()):
            held = await self.codec.read(contents_of(self.writer.shard, self.codec.schema, staged))
            pieces[name] = tuple(await self._write(held, at))
        self.request = replace(self.request, pieces=pieces)


class StreamWriter(Generic[V]):
    """Writes one collection.  Opened by `StreamClient.create_or_load`."""

    def __init__(self, line: _Line, ids: Ids, writer: WriteHandle, codec: Codec[V], name: str) -> None:
        self._line = line
        self._ids = ids
        self._writer = writer
        self._codec = codec
        self._memory = ids.fresh("w")
        self.name = name

    @property
    def upper(self) -> Frontier:
        """What is sealed, as far as is known here."""
        return self._writer.state.upper

    def write(self, updates: Iterable[Update[V] | tuple[V, int, int]]) -> Call:
        """Write updates, at any times that are not sealed: all or none.  Raises `InvalidUsage` for what is no time."""
        given = tuple(Update(*update) for update in updates)
        for update in given:
            if not 0 <= update.time < TIME_MAX:
                raise InvalidUsage(f"{self.name!r}: time {update.time} of an update is not within 0 <= t < 2**63 - 1")
        return self._enqueue(given)

    def seal(self, upper: int | None) -> Call:
        """Complete all times before ``upper`` (None: all there are; the collection is closed)."""
        return self._enqueue(Seal(EMPTY if upper is None else Frontier(upper)))

    def allow_compaction(self, since: int) -> Call:
        """Give up telling times before ``since`` apart; readers that hold them still can."""
        return self._enqueue(Allow(Frontier(since)))

    def _enqueue(self, step: Seal | Allow | tuple[Update[V], ...]) -> Call:
        return self._line.enqueue(Call(self._line, self._run, step))

    def _run(self, calls: list[Call]) -> _Run:
        state = self._writer.state
        asked = (state.seqno, state.upper)
        request = Pour(self._memory, self._ids.fresh("t"), self._writer.epoch, asked, ())
        return _Commit(self._writer, self._codec, self._ids, calls, request)


class StreamReader(Generic[V]):
    """Reads one collection, as updates."""

    def __init__(self, reader: ReadHandle, codec: Codec[V]) -> None:
        self._reader = reader
        self._codec = codec

    async def snapshot(self, as_of: int, *, timeout_s: float | None = None) -> list[Update[V]]:
        """Return the contents at ``as_of``, once it is sealed.  Raises `AsOfError` (see `ReadHandle.snapshot`)."""
        return await self._codec.read(await self._reader.snapshot(as_of, timeout_s=timeout_s))

    async def listen(self, as_of: int) -> AsyncIterator[tuple[list[Update[V]], Frontier]]:
        """Yield the updates after ``as_of``, each once, with the frontier that they are complete to.

        Raises `AsOfError`: the past of ``as_of`` is compacted.
        """
        async for contents, upper in self._reader.listen(as_of):
            yield await self._codec.read(contents), upper


class StreamClient:
    """Streams of one location, under one epoch.  A context manager: the last clone to leave stops it."""

    def __init__(self, client: PersistClient, epoch: int, *, line: _Line | None = None) -> None:
        self._client = client
        self._epoch = epoch
        self._line = _Line(client.clock) if line is None else line
        self._names = Names(Register(KEY, client.clock, client.ids, client.consensus), client.ids)
        self._left = False

    async def create_or_load(self, name: str, codec: Codec[V]) -> tuple[StreamWriter[V], StreamReader[V]]:
        """Return a writer and a reader of the collection ``name``, which is created if it is not there.

        Raises:
            InvalidUsage: it was created with another codec, or is not a stream.
            FencedError: a newer epoch writes it.
            Stopped: this client was stopped.
        """
        if self._line.stopped:
            raise Stopped(f"this stream client was stopped: it does not open {name!r}")
        named = await self._names.create_or_load(name, codec=codec.name, schema=codec.words)
        writer = await self._client.writer(
            named.shard, self._epoch, schema=codec.words, owner=OWNER, merger=codec.merger
        )
        await writer.commit(hold)
        reader = await self._client.reader(named.shard, codec.schema, name)
        assert reader is not None, f"{name!r} was opened for writing a moment ago"
        return StreamWriter(self._line, self._client.ids, writer, codec, name), StreamReader(reader, codec)

    async def drop(self, name: str) -> bool:
        """Close the collection ``name``, let go of all of it, and let the name mean nothing; tell whether it did.

        Whoever still has it open finds it closed; a reader with a lease keeps what it holds.  Raises `InvalidUsage` if
        it is not a stream.
        """
        named = (await self._names.all()).get(name)
        if named is None:
            return False
        writer = await self._client.writer(named.shard, self._epoch, schema=named.schema, owner=OWNER)
        end = (Seal(EMPTY), Allow(EMPTY))
        asked = (writer.state.seqno, writer.state.upper)
        request = Pour(self._client.ids.fresh("w"), self._client.ids.fresh("t"), self._epoch, asked, end)
        if isinstance(outcome := await writer.commit(partial(pour, request=request)), Fenced):
            raise fenced(writer.shard, outcome, self._epoch)
        await self._names.drop(name)
        return True

    def clone(self) -> StreamClient:
        """Return another client of the same line: its calls and this one's are in one order."""
        if self._line.stopped:
            raise Stopped("this stream client was stopped: it has no clones any more")
        self._line.clones += 1
        return StreamClient(self._client, self._epoch, line=self._line)

    async def stop(self) -> None:
        """Take no new calls, from any clone, and finish those that were made; may be called again if it fails."""
        self._line.stopped = True
        await self._line.drive()

    async def close(self) -> None:
        """Leave; the last clone to do so stops the client."""
        if not self._left:
            self._left = True
            self._line.clones -= 1
        if not self._line.clones:
            await self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
