"""Indexes: the contents of a collection in memory, arranged by a key, and the loops that keep them up to date.

An answer is definite: it equals the collection's rows with the key at ``as_of``, whatever is written meanwhile.  The
arrangement itself is the engine's: a cache that may be thrown away to free memory.  An answer that the arrangement
cannot give is read from the shard, which takes a Spark job, and counted (`Found.scanned`).

An index holds nothing that is written: two of them over one collection, in two processes, give equal answers.

A loop per index keeps it at its collection's time.  A peek waits for no loop: it is answered at the time that it asks
for, and updates what it finds out of date itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from strandline.algebra.nodes import Get, Restrict
from strandline.algebra.schema import Schema
from strandline.errors import Unavailable
from strandline.frontier import EMPTY, MINIMUM, Frontier, as_time, meet
from strandline.instance import error_half
from strandline.instance.commands import RunIndex
from strandline.instance.indexes.keys import rows_schema
from strandline.instance.loop import Loop, bring
from strandline.instance.problems import Problems
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle, definitely, read_definitely
from strandline.persist.shard.patience import Deadline
from strandline.persist.shard.state import ShardState
from strandline.plane import Engine
from strandline.store.clock import Beside


@dataclass
class Found:
    """How many peeks were answered: from memory, and by reading the shard."""

    memory: int = 0
    scanned: int = 0


class Index:
    """One index that runs here."""

    def __init__(self, command: RunIndex, reader: ReadHandle, engine: Engine) -> None:
        self.command = command
        self.upper: Frontier = MINIMUM
        """Up to where what is in memory was updated."""
        self.in_memory = False
        """Whether the engine had the contents in memory then: not yet, or there is no room for them."""
        self.found = Found()
        self._reader = reader
        self._engine = engine
        self._clean: int | None = None  # the last time at which the collection was found to have no errors

    @property
    def needed(self) -> Frontier:
        """The time from which on the shard must be readable: what is in memory is updated by changes since then.

        Empty: from none on.  What is not in memory begins with the newest contents.
        """
        return EMPTY if self.upper.empty or not self.in_memory else Frontier(max(0, as_time(self.upper) - 1))

    async def bring(self) -> None:
        """Bring the contents into memory, or update them there, up to where the collection is known to be."""
        state = self._reader.state
        time = last_time(state)
        if time is None or (self.in_memory and self.upper == state.upper):
            return
        none = rows_schema(self._reader.schema, self.command.key).empty_table()
        self.in_memory = await self._peeked(none, time, None) is not None
        self.upper = state.upper

    async def peek(self, keys: pa.Table, as_of: int, limit: int | None, timeout_s: float | None) -> pa.Table:
        """Return the collection's rows at ``as_of`` that have one of ``keys``, each as often as it is there.

        At most ``limit`` of them, if that is given, in any order.

        Raises:
            AsOfError: the collection cannot be read at ``as_of``, or is not complete then within ``timeout_s``.
            CollectionError: it has errors then.
        """
        await self._reader.wait_beyond(as_of, timeout_s=timeout_s)
        if not self.command.forgiven and as_of != self._clean:
            await error_half.refuse(self._engine, self._reader, as_of)
            self._clean = as_of
        found = await self._peeked(keys, as_of, limit)
        if found is not None:
            self.found.memory += 1
            return _shown(found, self._reader.schema)
        self.found.scanned += 1
        return await scanned(self._engine, self._reader, keys, as_of, limit)

    async def _peeked(self, keys: pa.Table, as_of: int, limit: int | None) -> pa.Table | None:
        async def peeked(contents: Contents) -> pa.Table | None:
            return await self._engine.peek(contents, self.command.key, keys, limit)

        plan = partial(self._reader.snapshot, as_of, timeout_s=0)
        _, found = await definitely(self._reader, plan, peeked)
        return found


def last_time(state: ShardState) -> int | None:
    """Return the last time at which a collection is complete and readable; None: there is none yet.

    One that is closed never changes again: its last time is its since.
    """
    if state.upper.empty:
        return as_time(state.since)
    return None if state.upper <= state.since else as_time(state.upper) - 1


async def scanned(engine: Engine, reader: ReadHandle, keys: pa.Table, as_of: int, limit: int | None) -> pa.Table:
    """Return the rows that `Index.peek` returns, read from the shard; errors of the collection are not looked for.

    Raises `AsOfError` if the collection cannot be read at ``as_of``.
    """
    schema = reader.schema
    plan = partial(reader.snapshot, as_of, timeout_s=0)
    contents, rows = await read_definitely(engine, reader, plan)
    key = Schema(tuple(column for column in schema if column.name in keys.column_names))
    wanted = await engine.local(keys.select(key.names), key, time=as_of, diff=1)
    node = Restrict(_get("rows", schema.names), key.names, _get("keys", key.names))
    found = await engine.evaluate(node, {"rows": rows, "keys": wanted}, origin=as_of)
    try:
        whole = await engine.collect(await engine.multiset(found))
    finally:
        reader.release(contents)
    return _shown(whole if limit is None else whole.slice(0, limit), schema)


def _get(frame: str, names: Sequence[str]) -> Get:
    return Get.of(frame, names)


def _shown(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with the columns of the collection, in their types."""
    wanted = rows_schema(schema)
    return rows if rows.schema.equals(wanted) else rows.select(schema.names).cast(wanted)


@dataclass
class Indexes:
    """The indexes that are open, by name."""

    beside: Beside
    problems: Problems
    engine: Engine
    open: dict[str, Index] = field(default_factory=dict)
    _loops: dict[str, Loop] = field(default_factory=dict)

    def start(self, name: str, command: RunIndex, reader: ReadHandle) -> None:
        """Have an index follow its collection from now on."""
        self.open[name] = Index(command, reader, self.engine)
        self._loops[name] = Loop(self.beside, lambda: self._turn(name))
        self._loops[name].wake()

    async def stop(self, name: str) -> None:
        """End an index; peeks that are under way are answered all the same."""
        self.open.pop(name, None)
        loop = self._loops.pop(name, None)
        if loop is not None:
            await loop.end()

    async def halt(self) -> None:
        """End all turns."""
        for loop in self._loops.values():
            await loop.end()

    def wake(self) -> None:
        """Let every index follow its collection, beside the caller."""
        for loop in self._loops.values():
            loop.wake()

    async def bring(self, deadline: Deadline | None) -> None:
        """Let every index follow its collection; return when all have, or at the deadline."""
        await bring(self._loops, deadline)

    def under_way(self) -> Iterator[str]:
        """Yield the indexes that are on their way to where their collections are."""
        yield from (name for name, loop in self._loops.items() if not loop.resting)

    def needed(self) -> Iterator[tuple[str, Frontier]]:
        """Yield by shard the time from which on the indexes must be able to read it."""
        by_shard: dict[str, Frontier] = {}
        for index in self.open.values():
            shard = index.command.of.shard
            by_shard[shard] = meet((by_shard.get(shard, index.needed), index.needed))
        yield from by_shard.items()

    async def peek(self, name: str, keys: pa.Table, as_of: int, limit: int | None, timeout_s: float | None) -> pa.Table:
        """See `Index.peek`.  Raises `Unavailable` if no index of that name runs here."""
        index = self.open.get(name)
        if index is None:
            raise Unavailable(f"index {name!r} does not run here yet: {self.problems.get(name, 'try again')}")
        return await index.peek(keys, as_of, limit, timeout_s)

    async def _turn(self, name: str) -> None:
        async with self.problems.of(name):
            await self.open[name].bring()
            self.problems.note(name, "")
