"""A frame: what it reads, fixed when it was loaded; the shares that Spark's planner gets; and the rows of its tasks.

A frame reads one collection at one time, or its changes between two.  Spark plans a frame for its first action, in a
process of its own, and keeps the plan for all later ones (it may plan again, and gets the same rows).  A lease keeps
the rows readable, and the parts that any plan named: `pin` takes it, each plan beats it, and so does the `keeper` of a
program that has the frame.  Without a keeper, the lease ends 15 minutes after the last plan.  Then the frame can be
read as long as the parts of its plan are there: a day at the least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Final

import msgspec.structs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.algebra.schema import DIFF, TIME, Column, ddl_of
from strandline.controller.asking import reads
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected
from strandline.datasource.opened import Asked, Door, Options, Place, opened
from strandline.datasource.rows import scan
from strandline.datasource.rows.conditions import Condition
from strandline.datasource.rows.scan import Look, Share, decode, encode, given, planned
from strandline.datasource.rows.where import condition
from strandline.errors import CorruptionError, DefinitionError, StrandlineError
from strandline.frontier import Frontier, as_time
from strandline.instance import error_half
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle, definitely
from strandline.wiring.stores import parts_of

LEASE: Final = "spark-frame"


@dataclass(frozen=True, slots=True)
class Pinned:
    """``lower`` None: the rows at the time before ``upper``; else the updates with ``lower <= time < upper``.

    ``whole``: the updates of the contents at ``lower`` are among them, as updates at that time.
    ``where``: which rows; None: all.  ``forgiven``: errors of the collection keep nothing from being read.
    """

    place: Place
    item: Collected
    names: tuple[str, ...]
    where: Condition | None
    lease: str
    lower: int | None
    upper: int
    whole: bool
    forgiven: bool

    @property
    def needed(self) -> int:
        """The time from which on the collection must stay readable."""
        if self.lower is None:
            return self.upper - 1
        return self.lower if self.whole else max(0, self.lower - 1)

    @property
    def look(self) -> Look:
        """What tasks read of each part."""
        return Look(self.item.shard, self.item.schema, self.names, times=self.lower is not None, where=self.where)

    @property
    def columns(self) -> dict[str, str]:
        """The types of the columns that are read, by name."""
        types = {column.name: column.type for column in self.item.schema}
        return {name: types[name] for name in self.names}

    @property
    def ddl(self) -> str:
        """The frame's schema."""
        own = ddl_of(starmap(Column, self.columns.items()))
        return own if self.lower is None else f"{own}, {TIME} bigint, {DIFF} bigint"


def pin(asked: Asked) -> Pinned:
    """Open the location, and fix what a frame reads.

    Raises:
        DefinitionError: there is no such collection, or no such column.
        InvalidUsage: the condition that its rows are to meet is none that is understood.
        AsOfError: it cannot be read at this time.
        CollectionError: it has errors then.
        ConfigError: the location cannot be opened so.
    """
    with opened(asked.place) as door:
        return door.run(_pin(door, asked))


def shares_of(pinned: Pinned) -> list[Share]:
    """Open the location, beat the lease, and return what the tasks of an action give.

    Raises `AsOfError` if what was pinned can no longer be read.
    """
    with opened(pinned.place) as door:
        return door.run(_shares(door, pinned))


def columns_of(item: Collected, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that are ``wanted``, as the collection spells them.  Raises `DefinitionError`."""
    known = {name.lower(): name for name in item.schema.names}
    for name in wanted or ():
        if name.lower() not in known:
            raise DefinitionError(f"{item.name!r} has no column {name!r}; it has {', '.join(item.schema.names)}")
    chosen = known if wanted is None else dict.fromkeys(name.lower() for name in wanted)
    return tuple(known[name] for name in chosen)


async def newest(catalog: Catalog, handle: ReadHandle) -> int:
    """Return the newest time at which a collection is complete; with a schedule, of its last refresh.

    Raises `AsOfError` if there is none yet.
    """
    time = await reads.complete([handle])
    return max(reads.shown_at(catalog.find(handle.name), handle.state, time), as_time(handle.since))


async def _pin(door: Door, asked: Asked) -> Pinned:
    catalog = await door.catalog()
    item = catalog.collection(asked.collection)
    place = replace(asked.place, location=door.stores.location)
    lease = asked.options.lease or door.stores.ids.fresh(LEASE)
    names = columns_of(item, asked.names)
    where = None if asked.options.where is None else condition(asked.options.where, item.schema)
    handle = await door.leased(item, lease)
    try:
        lower, upper, whole = await _times(handle, catalog, asked.options)
        found = Pinned(place, item, names, where, lease, lower, upper, whole=whole, forgiven=catalog.forgives(item))
        handle.release(await _contents(handle, found))
        if not found.forgiven and lower is None:
            await error_half.refuse(door.counting, handle, upper - 1)
        elif not found.forgiven and lower is not None:
            await error_half.refuse_in(door.counting, handle, lower, upper)
    except BaseException:
        await handle.close()
        raise
    await handle.downgrade_since(Frontier(found.needed))
    return found


async def _times(handle: ReadHandle, catalog: Catalog, wanted: Options) -> tuple[int | None, int, bool]:
    """Return ``lower``, ``upper`` and ``whole`` of what is asked for."""
    if not (wanted.changes or wanted.stream):
        time = await newest(catalog, handle) if wanted.asof is None else wanted.asof
        return None, time + 1, False
    upper = await reads.complete([handle]) + 1 if wanted.upper is None else wanted.upper
    since = as_time(handle.since)
    lower = since if wanted.lower is None else wanted.lower
    return lower, upper, lower == since


async def _shares(door: Door, pinned: Pinned) -> list[Share]:
    handle = await door.leased(pinned.item, pinned.lease)

    async def plan() -> Contents:
        return await _contents(handle, pinned)

    async def read(contents: Contents) -> list[Share]:
        return planned(door.stores.parts, contents)

    await handle.refresh()
    contents, found = await definitely(handle, plan, read)
    await handle.beat()
    handle.release(contents)
    return found


async def _contents(handle: ReadHandle, pinned: Pinned) -> Contents:
    """Return what is pinned.  Raises `AsOfError`."""
    if pinned.lower is None:
        return await handle.snapshot(pinned.upper - 1, timeout_s=0)
    if not pinned.whole:
        return await handle.changes(pinned.lower, pinned.upper)
    handle.require(pinned.lower)
    return msgspec.structs.replace(await handle.history(pinned.upper), advance=pinned.lower)


class FrameReader(DataSourceReader):
    """Reads what is pinned.  Spark pickles it for its tasks: it holds options and a schema, and nothing open.

    It takes no filters from Spark.  Spark 4.3 keeps in the relation what a source made of the filters of one query, and
    a later query of the same frame or view that has none reads that again, so rows would be missing from it.
    """

    def __init__(self, pinned: Pinned, schema: StructType) -> None:
        self._pinned = pinned
        self._look = pinned.look
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each task, at least one."""
        try:
            return as_partitions(shares_of(self._pinned))
        except StrandlineError as error:  # Spark shows the whole traceback, and the sentence is what counts
            raise error.with_traceback(None) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `read`; the message says what to do where a plan is too old."""
        try:
            yield from read(self._pinned.place, self._look, self._schema, partition)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}; if this frame was first used more than a day ago, and nothing held it since (a temporary "
                "view of SQL or Scala, a Connect client elsewhere), load it again: what Spark keeps of it names parts "
                "that were replaced and deleted"
            ) from error


def as_partitions(shares: Sequence[Share]) -> list[InputPartition]:
    """Return shares as Spark's partitions: bytes of our own encoding, the only thing of them that Spark pickles."""
    return [InputPartition(encode(share)) for share in shares]


def read(place: Place, look: Look, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, which reads parts from Blob and opens nothing else.

    Raises `CorruptionError` for a part that is missing or damaged, `CollectionError` for a row with a negative count.
    """
    if partition.value is None:  # Spark makes such a partition where there is none
        return
    kinds = to_arrow_schema(schema, timezone="UTC")
    with ExitStack() as opened:
        parts = parts_of(place.location, dict(place.storage), opened)
        for table in given(parts, decode(partition.value), look):
            for rows in [table] if look.times else _repeated(table):
                for batch in rows.cast(kinds).combine_chunks().to_batches(scan.BATCH_ROWS):
                    if batch.num_rows:
                        yield batch


def _repeated(counted: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as it is there."""
    if pc.all(pc.equal(counted[DIFF], 1)).as_py() is not False:
        yield counted.drop_columns([DIFF])
    else:
        yield from scan.copies(counted)
