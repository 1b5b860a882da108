"""Reading a stream: the contents at its start, and then every change, each once, across restarts.

Spark keeps an `Offset` in the stream's checkpoint.  A batch holds the changes between two offsets.  It is a function of
them alone, so a batch that Spark makes again after a kill has the same rows.

A stream that runs keeps its columns.  One that continues from a checkpoint must have those of its offset: with one
column more it would withdraw rows that it never gave, and earlier values of that column would never come.

The hold is a critical reader: no clock drops it, and it keeps the changes readable that Spark has not committed.  Its
name is durable in the checkpoint before the hold is made (in `partitions`), so each hold belongs to a checkpoint; until
then the lease of the load keeps the start readable.  `commit` moves it forward, and is called by Spark only once a
batch is in its log of commits.  If the checkpoint is deleted, no query will move the hold again: `release` ends it.

Law: at every moment, since of the collection is before the end of the last batch that Spark has committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strandline.algebra.schema import Column, ddl_of
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected
from strandline.datasource.opened import EPOCH, Door, asked, opened
from strandline.datasource.pinned import Pinned, as_partitions, newest, read
from strandline.datasource.rows.scan import Share, planned
from strandline.errors import AsOfError, DefinitionError, InvalidUsage
from strandline.frontier import TIME_MAX, Frontier, as_time
from strandline.instance import error_half
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import SinceHandle, definitely
from strandline.persist.handles.read import contents as contents_of

HOLD: Final = "spark-stream"


class Offset(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a stream has read.  ``upper`` 0: nothing yet, the contents at ``start`` come first.

    ``columns``: with which columns all before ``upper`` was given, their types by name; none: the offset is of a
    version that did not write them.  Such an offset is written as it was read: Spark compares texts.

    It holds which collection (its shard) is read, the name of the stream's hold, the time of the snapshot that it began
    with, the time before which everything is read, and the columns.
    """

    shard: str
    hold: str
    start: int
    upper: int
    columns: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def needed(self) -> int:
        """The time from which on the collection must stay readable, so that a batch from here can be read."""
        return self.upper - 1 if self.upper else self.start


class Stream:
    """A stream of one collection, over an open location; `StreamReader` is Spark's side of it."""

    def __init__(self, door: Door, pinned: Pinned) -> None:
        self._door = door
        self._pinned = pinned
        self._hold: SinceHandle | None = None
        self._given_back = False

    async def begin(self, start: int | None) -> Offset:
        """Return the offset of a new stream, which begins with the contents at ``start`` (None: the newest time).

        Raises `AsOfError` if it cannot be read then, `CollectionError` if it has errors then.
        """
        handle = await self._door.leased(self._pinned.item, self._pinned.lease)
        time = await newest(await self._door.catalog(), handle) if start is None else start
        handle.release(await handle.snapshot(time, timeout_s=0))
        if not self._pinned.forgiven:
            await error_half.refuse(self._door.counting, handle, time)
        return Offset(self._pinned.item.shard, self._door.stores.ids.fresh(HOLD), time, 0, self._pinned.columns)

    async def reached(self, offset: Offset, most: int = TIME_MAX) -> Offset:
        """Return where the next batch from ``offset`` ends, at ``most`` or before; the same offset: nothing came.

        Raises `DefinitionError` if the collection was dropped, renamed, or dropped and created again, or other columns
        were given before ``offset`` than are read now.
        """
        await self._refuse_another(offset)
        columns = self._pinned.columns
        if not offset.upper:
            return msgspec.structs.replace(offset, upper=offset.start + 1, columns=columns)
        self._refuse_other_columns(offset)
        handle = await self._door.plain(self._pinned.item)
        upper = min(as_time((await handle.refresh()).upper), most)
        window = contents_of(handle.state, handle.schema, offset.upper, upper, advance=offset.upper)
        came = upper > offset.upper and window.rows
        return msgspec.structs.replace(offset, upper=upper, columns=columns) if came else offset

    async def shares(self, start: Offset, end: Offset) -> list[Share]:
        """Return what the tasks of a batch give; from here on the stream's hold keeps what it reads.

        Raises `AsOfError` if the changes are no longer known, `CollectionError` if there are errors among these times,
        and `DefinitionError` as `reached`.
        """
        # Spark keeps no initial offset: after a kill it asks for another one, and only the end says what was begun.
        start = msgspec.structs.replace(end, upper=start.upper)
        await self._refuse_another(start)
        self._refuse_other_columns(end)  # also if nothing is committed: the sink may have the batch already
        await (await self._held(start)).downgrade(Frontier(start.needed))
        handle = await self._door.plain(self._pinned.item)
        if not self._pinned.forgiven:
            await error_half.refuse_in(self._door.counting, handle, start.upper or start.start, end.upper)
        await self._give_lease_back()

        async def plan() -> Contents:
            if not start.upper:
                return await handle.snapshot(start.start, timeout_s=0)
            return await handle.changes(start.upper, end.upper)

        async def look(contents: Contents) -> list[Share]:
            return planned(self._door.stores.parts, contents)

        try:
            return (await definitely(handle, plan, look))[1]
        except AsOfError as error:
            await self._let_go(start)
            raise AsOfError(
                f"{error}; so this stream cannot go on from there: begin a new one, with another checkpoint"
            ) from error

    async def commit(self, end: Offset) -> None:
        """Let go what Spark has committed: all before ``end``."""
        await (await self._held(end)).downgrade(Frontier(end.needed))

    async def _held(self, offset: Offset) -> SinceHandle:
        if self._hold is None:
            self._hold = await self._door.client.since(offset.shard, offset.hold, EPOCH)
        return self._hold

    async def _give_lease_back(self) -> None:
        """End the lease that the load took: the hold is there."""
        if not self._given_back:
            await (await self._door.leased(self._pinned.item, self._pinned.lease)).close()
            self._given_back = True

    async def _refuse_another(self, offset: Offset) -> None:
        """Raise `DefinitionError` if the collection is not the one that the stream began with, and let that go.

        One that has another name now is held further: the stream goes on from its checkpoint under that name.
        """
        catalog = await self._door.catalog()
        item = catalog.find(self._pinned.item.name)
        if getattr(item, "shard", None) == offset.shard:
            return
        renamed = [each.name for each in catalog.items.values() if getattr(each, "shard", None) == offset.shard]
        if renamed:
            raise DefinitionError(
                f"{self._pinned.item.name!r}, which this stream reads, is called {renamed[0]!r} now: load that, with "
                "the same checkpoint, and the stream goes on"
            )
        what = "was dropped" if item is None else "was dropped and created again, or replaced by another definition"
        await self._let_go(offset)
        raise DefinitionError(
            f"{self._pinned.item.name!r}, which this stream reads, {what}, so its changes from {offset.upper} on are "
            "not there; begin a new stream, with another checkpoint"
        )

    def _refuse_other_columns(self, offset: Offset) -> None:
        """Raise `DefinitionError` if other columns were given before ``offset`` than are read now, in any order.

        The hold stays: with the columns of before the stream can go on.
        """
        before, now = offset.columns, self._pinned.columns
        if not before or before == now:
            return
        changes = []
        if came := ddl_of(Column(*each) for each in now.items() if each not in before.items()):
            changes.append(
                f"{came} came, and what was written there before {offset.upper} is not in what the stream has given"
            )
        if left := ddl_of(Column(*each) for each in before.items() if each not in now.items()):
            changes.append(f"{left} left, and what the stream has given with it would be withdrawn without it")
        raise DefinitionError(
            f"the columns that this stream reads of {self._pinned.item.name!r} are not those of before: "
            f"{'; '.join(changes)}; begin a new stream, with another checkpoint, or choose the columns of before: "
            f".option('columns', {','.join(before)!r})"
        )

    async def _let_go(self, offset: Offset) -> None:
        """Release the hold of a stream that cannot go on, if its shard is there."""
        if await self._door.client.reader(offset.shard, self._pinned.item.schema, "") is not None:
            await (await self._held(offset)).expire()
            self._hold = None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's side of a stream.  Its tasks get it pickled, and only `read`."""

    def __init__(self, pinned: Pinned, start: int | None, schema: StructType) -> None:
        self._pinned = pinned
        self._start = start
        self._schema = schema
        self._open: tuple[ExitStack, Door, Stream] | None = None
        self._most = TIME_MAX

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Return where a new stream begins."""
        door, stream = self._opened()
        return _plain(door.run(stream.begin(self._start)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends."""
        door, stream = self._opened()
        return _plain(door.run(stream.reached(_offset(start), self._most)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no more than what is there now."""
        door, _ = self._opened()

        async def upper() -> int:
            return as_time((await (await door.plain(self._pinned.item)).refresh()).upper)

        self._most = door.run(upper())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch."""
        if start == end:
            return []
        door, stream = self._opened()
        return as_partitions(door.run(stream.shares(_offset(start), _offset(end))))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read(self._pinned.place, self._pinned.look, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go what Spark has committed."""
        door, stream = self._opened()
        door.run(stream.commit(_offset(end)))

    def stop(self) -> None:
        """Close the location; the hold stays, for the stream that goes on from the checkpoint."""
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _opened(self) -> tuple[Door, Stream]:
        if self._open is None:
            stack = ExitStack()
            door = stack.enter_context(opened(self._pinned.place))
            self._open = stack, door, Stream(door, self._pinned)
        return self._open[1:]


def _plain(offset: Offset) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(offset)
    return found


def _offset(found: dict[str, Any]) -> Offset:
    return msgspec.convert(found, Offset)


def streams(
    location: str, *, consensus: str | None = None, storage: Mapping[str, str] | None = None
) -> dict[str, dict[str, int]]:
    """Return what streams of Spark's hold at a location: by collection, each hold with the time it keeps readable.

    The name of a stream's hold is in the ``offsets`` of its checkpoint.  Of a dropped collection its shard is named.
    """
    with opened(asked(_texts(location, consensus, storage)).place) as door:
        return door.run(_streams(door))


def release(
    location: str, hold: str, *, consensus: str | None = None, storage: Mapping[str, str] | None = None
) -> None:
    """Release the hold of a stream that was given up.  A stream that goes on from its checkpoint then finds it gone.

    Raises `InvalidUsage` if there is no such hold.
    """
    with opened(asked(_texts(location, consensus, storage)).place) as door:
        door.run(_release(door, hold))


def _texts(location: str, consensus: str | None, storage: Mapping[str, str] | None) -> dict[str, str]:
    own = {"location": location, "listing": "true"} | ({} if consensus is None else {"consensus": consensus})
    return own | {f"storage.{name}": text for name, text in (storage or {}).items()}


def _shards(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield every shard that may be held, with what to call it."""
    yield from ((item.shard, item.name) for item in catalog.items.values() if isinstance(item, Collected))
    yield from ((shard, shard) for shard in catalog.dropped)


async def _streams(door: Door) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for shard, name in _shards(await door.catalog()):
        await door.client.look(shard)
        state = door.client.known(shard)
        held = {} if state is None else state.criticals
        own = {reader: each.since.at or 0 for reader, each in held.items() if reader.startswith(HOLD)}
        if own:
            found[name] = own
    return found


async def _release(door: Door, hold: str) -> None:
    held = await _streams(door)
    shards = [shard for shard, name in _shards(await door.catalog()) if hold in held.get(name, {})]
    if not shards:
        known = sorted(each for own in held.values() for each in own)
        raise InvalidUsage(f"no stream has a hold {hold!r} here; there are: {', '.join(known) or 'none'}")
    for shard in shards:
        await (await door.client.since(shard, hold, EPOCH)).expire()
