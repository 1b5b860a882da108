"""Two collections that change all the time, in real shards, and what each of them holds before a time.

Each round is one time.  It inserts, changes and deletes a few rows; every seventh changes most of them, so that some
transactions take longer.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from strandline.algebra.schema import DIFF, TIME
from strandline.frontier import Frontier
from strandline.materialize.log import decode, register_of
from strandline.materialize.protocol.task import Binding, MaterializationSpec, Progress, canonical, contents
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.state import Appended
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.contracts.drivers.world import KEYED, row
from strandline.testing.lists.list_engine import ListEngine, updates

LOG = "log"
EPOCH = 1
KEYS = 60
FEW = 6
LARGE_EVERY = 7
PACE_S = 0.03
KEPT = MaterializationSpec("m", tuple(Binding(name, name.capitalize(), ("k",), KEYED) for name in ("orders", "people")))
"""Tables that are kept equal to the collections."""
PUSHED = replace(KEPT, bindings=tuple(replace(binding, delta=True) for binding in KEPT.bindings))
"""The last row of each key that changed."""


def open_client(root: Path) -> tuple[PersistClient, ListEngine]:
    """Open the location, as every process does; rows are lists, so no process needs Spark."""
    blob = FileBlob(root / "blob")
    engine = ListEngine(blob)
    consensus = SQLiteConsensus(root / "consensus.db")
    return PersistClient(SystemClock(), SystemIds(), blob, consensus, engine), engine


class Changing:
    """The collections below ``root``.  What was written is remembered here, so that it can be compared."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.upper = 1
        self._random = Random(seed)
        self._changes: dict[str, list[tuple[dict[str, Any], int, int]]] = {b.collection: [] for b in KEPT.bindings}
        self._now: dict[str, dict[int, dict[str, Any]]] = {b.collection: {} for b in KEPT.bindings}
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        (root / "blob").mkdir(parents=True)
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        """Make the shards, and hold them for the task, as a controller does before it starts one."""
        client, engine = open_client(self.root)
        for writer in await self._writers(client):
            await client.since(writer.shard, LOG, 0)
        await self._round(await self._writers(client), engine)

    def start(self) -> None:
        """Let them change from now on, in a thread."""
        self._writing = self._threads.submit(lambda: asyncio.run(self._write()))

    def stop(self) -> None:
        """Let them rest."""
        self._ended.set()
        if self._writing is not None:
            self._writing.result(240)
        self._threads.shutdown()

    def write_round(self) -> None:
        """Let one round come, while no thread writes."""

        async def one() -> None:
            client, engine = open_client(self.root)
            await self._round(await self._writers(client), engine)

        asyncio.run(one())

    def truth(self, binding: Binding, time: int) -> list[str]:
        """Return the rows of a collection from the changes before a time."""
        before = [(found, diff) for found, at, diff in self._changes[binding.collection] if at < time]
        return sorted(map(canonical, contents(binding, before).values()))

    def values(self, binding: Binding, time: int) -> dict[int, str]:
        """Return the same by key."""
        before = [(found, diff) for found, at, diff in self._changes[binding.collection] if at < time]
        return {found["k"]: canonical(found) for found in contents(binding, before).values()}

    def changed(self, binding: Binding, time: int) -> list[tuple[dict[str, Any], int]]:
        """Return the changes before a time."""
        return [(found, diff) for found, at, diff in self._changes[binding.collection] if at < time]

    def progress(self) -> Progress:
        """Return what the task's log has."""
        client, _ = open_client(self.root)
        body = asyncio.run(register_of(LOG, client.clock, client.ids, client.consensus).read())
        return Progress() if body is None else decode(LOG, body).progress

    async def _write(self) -> None:
        client, engine = open_client(self.root)
        writers = await self._writers(client)
        while not self._ended.is_set():
            await self._round(writers, engine)
            await client.clock.sleep(PACE_S)

    async def _writers(self, client: PersistClient) -> list[WriteHandle]:
        return [await client.writer(b.collection, EPOCH, schema=KEYED.ddl) for b in KEPT.bindings]

    async def _round(self, writers: list[WriteHandle], engine: ListEngine) -> None:
        time = self.upper
        for writer, binding in zip(writers, KEPT.bindings, strict=True):
            changes = self._draw(binding.collection, time)
            given = updates(KEYED, [{**found, TIME: time, DIFF: diff} for found, diff in changes])
            request = StageRequest(writer.shard, KEYED, time, time + 1, writer.stage_prefix())
            staged = await engine.stage(given, request)
            lower = writer.state.upper
            # Before it can be read: a reader of the endpoint may be faster than this thread.
            self._changes[binding.collection] += [(found, time, diff) for found, diff in changes]
            outcome = await writer.compare_and_append([staged], lower, Frontier(time + 1))
            assert isinstance(outcome, Appended), outcome
        self.upper = time + 1

    def _draw(self, collection: str, time: int) -> list[tuple[dict[str, Any], int]]:
        present, changes = self._now[collection], list[tuple[dict[str, Any], int]]()
        many = KEYS if time % LARGE_EVERY == 0 else FEW
        for k in sorted(self._random.sample(range(KEYS), self._random.randint(2, many))):
            old = present.pop(k, None)
            if old is not None:
                changes.append((old, -1))
            if old is None or self._random.random() > 0.3:  # else it goes
                present[k] = row(k, time + 0.5, f"{collection} {time}")
                changes.append((present[k], 1))
        return changes
