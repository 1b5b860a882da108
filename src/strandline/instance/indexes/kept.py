"""The indexes that an instance runs: a loop for each, which keeps it where its collection is.

A peek waits for no loop: it is answered at the time that it asks for, and what it finds out of date it updates itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from strandline.errors import Unavailable
from strandline.frontier.antichain import Frontier, meet
from strandline.instance.commands import RunIndex
from strandline.instance.indexes.index import Index
from strandline.instance.loop import Loop, bring
from strandline.instance.problems import Problems
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline
from strandline.plane.engine import Engine
from strandline.store.beside import Beside


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
