"""The stream client: write now, seal later, in the order of the calls.

`StreamClient.create_or_load` gives a writer and a reader of a named collection.  The writer's methods (`write`, `seal`,
`allow_compaction`) are plain functions: each *enqueues* a request at once and returns a `Call` to await.
Calls take effect in the order in which they were made, over all collections of a client and its clones; adjacent
pending calls for one collection share one commit.  A call is done when its effect is durable.  A written update is
durable then, but no read shows it before its time is sealed.

Nothing runs in the background: awaiting a call also performs the calls queued before it (`unsealed.py`).  If the store
does not answer, the await raises `Indeterminate` or `Unavailable`.  Awaiting any call then retries the same commit,
with the same token, before any later call.  So no call is skipped or done twice, and a process that stops has done a
prefix of its calls.  A call that is never awaited is done with a later one, or by `stop`.

Trap: the caller chooses the times.  A write at a time that any writer has sealed is refused (`InvalidUsage`), and later
calls go on.  Sealing is monotone: sealing less than is sealed does nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeAlias, TypeVar

from msgspec.structs import replace

from strandline.errors import CollectionError, DefinitionError, FencedError, InvalidUsage, Stopped, StrandlineError
from strandline.frontier import EMPTY, Frontier, given_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.updates import Codec, Update, bounds_of, contents_of, given_updates
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard.batch import InlinePart, Staged
from strandline.persist.shard.state import Fenced, ShardState
from strandline.persist.together.unsealed import (
    OWNER,
    Allow,
    Call,
    Line,
    Outcome,
    Pour,
    Poured,
    Refused,
    Run,
    Seal,
    Step,
    Straddling,
    Write,
    hold,
    pour,
)
from strandline.store.clock import Ids

V = TypeVar("V")
Asked: TypeAlias = Seal | Allow | tuple[Update[Any], ...]
"""The request of a call: updates to write, or a seal or allow step."""


@dataclass
class _Commit(Generic[V]):
    """A run of calls for one collection: staged once and committed as one pour, also over several attempts."""

    writer: WriteHandle
    codec: Codec[V]
    ids: Ids
    calls: list[Call[Asked]]
    request: Pour
    mine: dict[int, list[Write]] = field(default_factory=dict)
    """The batches staged for each call, by the call's index."""
    inline: int = 0
    """Bytes of inline parts that are staged and not in the state yet."""

    async def go(self) -> None:
        """See `Run.go`."""
        await self._stage()
        anew = False
        while steps := self._steps():
            try:
                outcome = await self._attempt(tuple(step for _, step in steps))
            except InvalidUsage as refusal:
                if anew:
                    return self._settle(refusal)
                anew = True  # the parts waited so long that a sweep may have deleted them as leaked
                self.mine, self.inline, self.request = {}, 0, replace(self.request, pieces={})
                await self._stage()
                continue
            match outcome:
                case Poured():
                    break
                case Straddling(batches, at):
                    await self._cut(batches, at)
                case Refused(index, upper):
                    await self._refuse(steps[index][0], upper)
                case Fenced():
                    return self._settle(fenced(self.writer.shard, outcome, self.writer.epoch))
        return self._settle()

    async def _attempt(self, steps: tuple[Step, ...]) -> Outcome:
        """Pour ``steps``; record the version of the first attempt whose outcome is unknown."""
        tried: tuple[int, Frontier] | None = None

        def attempt(state: ShardState) -> tuple[ShardState, Outcome]:
            nonlocal tried
            tried = (state.seqno, state.upper)
            return pour(state, replace(self.request, steps=steps))

        def doubt() -> None:
            if self.request.doubt is None:
                self.request = replace(self.request, doubt=tried)

        try:
            return await self.writer.commit(attempt, in_doubt=doubt)
        except StrandlineError:
            raise
        except BaseException:  # cancelled, possibly during an attempt
            doubt()
            raise

    def _settle(self, refusal: FencedError | InvalidUsage | None = None) -> None:
        for call in self.calls:
            if not call.done:
                call.settle(refusal)

    async def _stage(self) -> None:
        """Write the updates of each call, cut at the upper to which later calls will seal."""
        last = self.writer.state.upper
        for call in self.calls:
            last = max(last, call.step.upper) if isinstance(call.step, Seal) else last
        for index, call in enumerate(self.calls):
            if isinstance(call.step, tuple) and index not in self.mine and not call.done:
                try:
                    self.mine[index] = await self._write(call.step, last)
                except (InvalidUsage, DefinitionError) as error:
                    # The values do not fit the collection, or its schema cannot be stored: retrying is no use.
                    call.settle(error)

    async def _write(self, updates: Iterable[Update[V]], at: Frontier) -> list[Write]:
        """Stage updates in two batches: those before ``at``, and the others."""
        before = [update for update in updates if not at.beyond(update.time)]
        after = [update for update in updates if at.beyond(update.time)]
        written = []
        for each in (before, after):
            if each:
                room = max(0, self.writer.inline_room - self.inline)
                staged = await self.codec.stage(self.writer, each, bounds_of(each), inline_bytes_max=room)
                self.inline += sum(part.size for part in staged.parts if isinstance(part, InlinePart))
                written.append(Write(self.ids.fresh("u"), staged))
        return written

    def _steps(self) -> list[tuple[int, Step]]:
        """Return the steps that are left to do, each with the index of its call."""
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
                f"shard {self.writer.shard!r}: cannot write at {lower}: the collection is sealed up to {upper}"
            )
        )
        await self.codec.discard(write.staged for write in self.mine[index])

    async def _cut(self, batches: Mapping[str, Staged], at: Frontier) -> None:
        """Cut unsealed batches that reach beyond ``at``: read them, and stage the two sides as separate batches."""
        pieces = dict(self.request.pieces)
        for name, staged in sorted(batches.items()):
            held = await self.codec.read(contents_of(self.writer.shard, self.codec.schema, staged))
            pieces[name] = tuple(await self._write(held, at))
        self.request = replace(self.request, pieces=pieces)


class StreamWriter(Generic[V]):
    """Writes one collection.  Opened by `StreamClient.create_or_load`."""

    def __init__(self, line: Line, ids: Ids, writer: WriteHandle, codec: Codec[V], name: str) -> None:
        self._line = line
        self._ids = ids
        self._writer = writer
        self._codec = codec
        self._memory = ids.fresh("w")
        self.name = name

    @property
    def upper(self) -> Frontier:
        """The time up to which the collection is sealed, as far as is known here."""
        return self._writer.state.upper

    def write(self, updates: Iterable[Update[V] | tuple[V, int, int]]) -> Call[Asked]:
        """Write updates at times that are not sealed: all or none.

        Raises `InvalidUsage` at once if a time or diff is not a whole number.
        """
        return self._enqueue(given_updates(updates, repr(self.name)))

    def seal(self, upper: int | None) -> Call[Asked]:
        """Complete all times before ``upper`` (None: all times; this closes the collection).

        Raises `InvalidUsage` at once if it is not a time.
        """
        return self._enqueue(Seal(EMPTY if upper is None else Frontier(given_time(upper, repr(self.name)))))

    def allow_compaction(self, since: int) -> Call[Asked]:
        """Allow compaction of times before ``since``; times that readers hold stay distinct.

        Raises `InvalidUsage` at once if it is not a time.
        """
        return self._enqueue(Allow(Frontier(given_time(since, repr(self.name)))))

    def _enqueue(self, step: Asked) -> Call[Asked]:
        return self._line.enqueue(Call(self._line, self._run, step))

    def _run(self, calls: list[Call[Asked]]) -> Run:
        request = Pour(self._memory, self._ids.fresh("t"), self._writer.epoch, ())
        return _Commit(self._writer, self._codec, self._ids, calls, request)


class StreamReader(Generic[V]):
    """Reads one collection, as updates.  Opened by `read_stream`, or with a writer (then it holds nothing)."""

    def __init__(self, reader: ReadHandle, codec: Codec[V]) -> None:
        self._reader = reader
        self._codec = codec

    async def snapshot(self, as_of: int, *, timeout_s: float | None = None) -> list[Update[V]]:
        """Wait until ``as_of`` is sealed, and return the contents at it.

        Raises:
            AsOfError: see `ReadHandle.snapshot`.
            CollectionError: a value has a negative count, because more of it was withdrawn than was written.
        """
        found = await self._values(await self._reader.snapshot(as_of, timeout_s=timeout_s))
        for value, _, diff in found:
            if diff < 0:
                raise CollectionError(
                    f"collection {self._reader.name!r}: at time {as_of} there are {diff} of {value!r}: more of it was "
                    "withdrawn than was written; write what is missing at a time that is not sealed, and read there"
                )
        return found

    async def listen(self, as_of: int) -> AsyncIterator[tuple[list[Update[V]], Frontier]]:
        """Yield the updates after ``as_of``, each once, with the frontier up to which they are complete.

        Raises `AsOfError` if the history at ``as_of`` is compacted.
        """
        async for contents, upper in self._reader.listen(as_of):
            yield await self._values(contents), upper

    async def allow_compaction(self, since: int) -> None:
        """Release the times before ``since`` that this reader's lease holds (see `ReadHandle.downgrade_since`)."""
        await self._reader.downgrade_since(Frontier(given_time(since, repr(self._reader.name))))

    async def beat(self) -> None:
        """Renew this reader's lease (see `ReadHandle.beat`)."""
        await self._reader.beat()

    async def close(self) -> None:
        """End this reader's lease."""
        await self._reader.close()

    async def _values(self, contents: Contents) -> list[Update[V]]:
        try:
            return await self._codec.read(contents)
        finally:
            self._reader.release(contents)


async def read_stream(client: PersistClient, name: str, codec: Codec[V], *, lease: bool) -> StreamReader[V] | None:
    """Open the collection ``name`` to read it, in any process and beside any writer; None if there is none.

    The reader has no epoch, so it fences no writer.  ``lease``: what is readable now stays readable until
    `StreamReader.close`, or until the lease expires; without a lease the reader writes nothing.

    Raises `InvalidUsage` if it was created with another codec.
    """
    named = await client.names().load(name, codec=codec.name, schema=codec.words)
    if named is None:
        return None
    opened = client.leased_reader if lease else client.reader
    reader = await opened(named.shard, codec.schema, name)
    return None if reader is None else StreamReader(reader, codec)


class StreamClient:
    """Streams of one location, under one epoch.  A context manager: the last clone to leave stops it."""

    def __init__(self, client: PersistClient, epoch: int, *, line: Line | None = None) -> None:
        self._client = client
        self._epoch = epoch
        self._line = Line(client.clock) if line is None else line
        self._names = client.names()
        self._left = False

    async def create_or_load(self, name: str, codec: Codec[V]) -> tuple[StreamWriter[V], StreamReader[V]]:
        """Return a writer and a reader of the collection ``name``, creating it if it does not exist.

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
        """Close the collection ``name``, drop its name, and delete all of it; return whether it existed.

        A process that still has it open finds it closed.  While a leased reader holds any of it, nothing is deleted;
        the location's garbage collection deletes it once no lease is left.  Raises `InvalidUsage` if it is not a
        stream.
        """
        named = (await self._names.all()).get(name)
        if named is None:
            return False
        writer = await self._client.writer(named.shard, self._epoch, schema=named.schema, owner=OWNER)
        end = (Seal(EMPTY), Allow(EMPTY))
        request = Pour(self._client.ids.fresh("w"), self._client.ids.fresh("t"), self._epoch, end)
        if isinstance(outcome := await writer.commit(partial(pour, request=request)), Fenced):
            raise fenced(writer.shard, outcome, self._epoch)
        await self._names.drop(name, named, closed=True)
        await self._client.clear(named.shard)
        return True

    def clone(self) -> StreamClient:
        """Return another client that shares this client's queue, so that the calls of both are in one order."""
        if self._line.stopped:
            raise Stopped("this stream client was stopped: it cannot be cloned")
        self._line.clones += 1
        return StreamClient(self._client, self._epoch, line=self._line)

    async def stop(self) -> None:
        """Refuse new calls, from any clone, and finish the calls that were made; may be called again if it fails.

        Raises:
            FencedError, InvalidUsage, DefinitionError: calls that were never awaited were refused for good, so their
                writes are lost.  All other calls are done; a second `stop` does not raise this again.
            Indeterminate, Unavailable: some calls are not done.
        """
        self._line.stopped = True
        await self._line.finish()

    async def close(self) -> None:
        """Leave; the last clone to do so stops the client (see `stop`)."""
        if not self._left:
            self._left = True
            self._line.clones -= 1
        if not self._line.clones:
            await self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            await self.close()
        except StrandlineError as other:
            if error is None:
                raise
            error.add_note(f"besides, the stream client could not be closed in order: {other}")
