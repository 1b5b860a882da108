"""Consensus by conditional put is linearizable under every fault, and the world that says so finds what is planted.

Writers add their own marks to one key, each try once; some of them are zombies that go on with a head of long ago.
Another actor truncates all the time, and scans.  The object store loses answers and does things late; its callers
crash and are left out.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from strandline.errors import Determinate, Indeterminate, StoreError
from strandline.store.consensus_kinds import object_consensus as module
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.memory import MemoryBlob
from strandline.store.protocols import Committed, CompareAndSet, Mismatch, Versioned
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Fate, Simulation, run_sync
from strandline.testing.simulation.places import SimObjects

KEY = "k"
MARKS_MAX = 12


class World:
    """One run: the answers that every actor got, to be compared with what is stored in the end."""

    def __init__(self, seed: int, make: type[ObjectConsensus]) -> None:
        self.place: dict[str, bytes] = {}
        self.make = make
        self.simulation = Simulation(Seeded(random.Random(seed)), calm_after=3_000, steps_max=50_000)
        self.committed: list[str] = []
        self.refused: list[str] = []
        self.newest = -1  # the highest seqno in any answer
        for name in ("ann", "bob", "cid"):
            self.simulation.spawn(name, partial(self.writer, name))
        self.simulation.spawn("tom", self.truncater)

    def consensus(self) -> ObjectConsensus:
        """Open a handle that knows nothing, as a process that starts does."""
        return self.make(SimObjects(MemoryBlob(self.place)))

    async def head(self, consensus: ObjectConsensus) -> Versioned | None:
        """Read the head, and hold the law that it is no older than any answer before the call."""
        known = self.newest
        head = await consensus.head(KEY)
        seqno = -1 if head is None else head.seqno
        assert seqno >= known, f"the head was {seqno} after an answer of {known}"
        self.newest = max(self.newest, seqno)
        return head

    async def writer(self, name: str, incarnation: int) -> None:
        """Add marks; each is tried once, and what became of it is written down."""
        consensus = self.consensus()
        stale: Versioned | None = None
        for number in range(MARKS_MAX):
            mark = f"{name}{incarnation}.{number}"
            try:
                # sometimes with a head that it remembers from long ago: a zombie
                zombie = stale is not None and self.simulation.choose("zombie", 4) == 3
                head = stale if zombie else await self.head(consensus)
                stale = stale if zombie or (stale is not None and number % 3) else head
                expected, marks = (None, "") if head is None else (head.seqno, head.data.decode())
                first = 0 if expected is not None else self.simulation.choose("first", 3)
                new = Versioned(first if expected is None else expected + 1, f"{marks} {mark}".strip().encode())
                outcome = await consensus.compare_and_set(CompareAndSet(KEY, expected, new))
            except Indeterminate:
                continue
            except Determinate:
                self.refused.append(mark)
                continue
            if outcome == Committed():
                self.committed.append(mark)
                self.newest = max(self.newest, new.seqno)
            else:
                self.refused.append(mark)

    async def truncater(self, incarnation: int) -> None:
        """Truncate to the head or a little before it, again and again; and scan."""
        consensus = self.consensus()
        for _ in range(MARKS_MAX):
            try:
                head = await self.head(consensus)
                if head is not None:
                    await consensus.truncate(KEY, head.seqno - self.simulation.choose("behind", 3))
                    versions = await consensus.scan(KEY, 0, 100)
                    assert versions, "a key that has a head has no versions"
                    assert [v.seqno for v in versions] == list(range(versions[0].seqno, versions[-1].seqno + 1))
                    grown = [version.data for version in versions]
                    assert all(later.startswith(earlier) for earlier, later in pairwise(grown))
            except StoreError:
                continue

    def check(self) -> None:
        """Hold the laws: a committed mark is in the history once, a refused mark is not."""
        try:
            head = run_sync(ObjectConsensus(MemoryBlob(self.place)).head(KEY))
        except Determinate as error:
            raise AssertionError("what was committed cannot be read") from error
        marks = [] if head is None else head.data.decode().split()
        assert len(marks) == len(set(marks)), "a mark is in the history twice"
        assert set(self.committed) <= set(marks), "a mark that was acknowledged is lost"
        assert not set(self.refused) & set(marks), "a mark that was refused is in the history"
        assert head is None or head.seqno >= self.newest


def runs(seeds: range, make: type[ObjectConsensus] = ObjectConsensus) -> list[World]:
    """Return the worlds of these seeds, each driven to its end and checked."""
    worlds = []
    for seed in seeds:
        world = World(seed, make)
        try:
            world.simulation.drive()
            world.check()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        worlds.append(world)
    return worlds


def test_it_is_linearizable_whatever_fails(record_property: Any) -> None:
    """Damage: on an object store a shard's history forks, or forgets what was acknowledged."""
    worlds = runs(range(400))
    acknowledged = sum(len(world.committed) for world in worlds)
    assert acknowledged >= 8 * len(worlds), "too little succeeds to prove anything"
    met = {fate for world in worlds for site, fate in world.simulation.coverage() if site == "blob.create"}
    assert met == set(Fate)
    assert len({world.simulation.trace_hash() for world in worlds}) == len(worlds)


class NoMarker(ObjectConsensus):
    """Planted: the witness alone, the version before, is asked for."""

    async def _marker(self, path: str) -> int:
        return 0


class Doubtless(ObjectConsensus):
    """Planted: a writer that finds versions truncated after its create takes its own for garbage."""

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        try:
            return await super().compare_and_set(request)
        except Indeterminate as doubt:
            if "while the versions before" in str(doubt):
                return Mismatch()
            raise


class Overwriting(ObjectConsensus):
    """Planted: the marker is set, not moved by conditional put, so a late one moves it back."""

    async def truncate(self, key: str, seqno: int) -> int:
        path = self._path(key)
        name = module._truncated_below(path)
        first = await self._get_first(path)
        assert first is not None
        if first.seqno < seqno:
            await self._objects.set(name, module._sealed(name, Versioned(seqno, b"")))
            await self._sweep(path, seqno)
        return 0


class Trusting(ObjectConsensus):
    """Planted: the first absence is the end, though the version may have been deleted."""

    async def head(self, key: str) -> Versioned | None:
        path = self._path(key)
        newest = await self._somewhere(path) or await self._oldest(path)
        while newest is not None and (following := await self._get(path, newest.seqno + 1)) is not None:
            newest = following
        return newest


class Eager(ObjectConsensus):
    """Planted: the versions are deleted before the marker is durable."""

    async def truncate(self, key: str, seqno: int) -> int:
        await self._sweep(self._path(key), seqno)
        return await super().truncate(key, seqno)


@pytest.mark.parametrize("planted", [NoMarker, Doubtless, Overwriting, Trusting, Eager])
def test_the_world_finds_what_is_planted(planted: type[ObjectConsensus]) -> None:
    """Damage: the world above proves nothing."""
    with pytest.raises(AssertionError):
        runs(range(4000), planted)
