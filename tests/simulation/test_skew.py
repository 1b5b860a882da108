"""Processes of two versions over one shard: the older ones refuse by name what newer ones wrote, and change nothing.

What an upgrade does to processes that still run: a process of the next format appends.  From then on a process that
knows only this format cannot go on, whatever it has open; one that knows the next format reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import pytest

from strandline.errors import StrandlineError
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record, RecordMerger
from strandline.persist.shard import codec
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync
from worlds.rows import SCHEMA

NEXT = codec.FORMAT + 1


class Location:
    """One place, and the processes that use it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, list[Any]] = {}
        self.processes = 0

    def client(self) -> PersistClient:
        """Start a process."""
        self.processes += 1
        blob, consensus = MemoryBlob(self.objects), MemoryConsensus(self.versions)
        ids = CountingIds(f"p{self.processes}")
        return PersistClient(HandClock(), ids, blob, consensus, RecordMerger(blob), rollup_every=4)

    async def append(self, time: int, epoch: int = 1) -> None:
        """Append a record in a process of its own."""
        log = await self.client().records("log", epoch)
        await log.append([Record(b"row %d" % time, time, 1)], Frontier(time), Frontier(time + 1))


async def _append(client: PersistClient, log: Any) -> None:
    await log.append([Record(b"late", 3, 1)], Frontier(3), Frontier(4))


async def _open(client: PersistClient, _: Any) -> None:
    await client.records("log", 9)


async def _hold(client: PersistClient, _: Any) -> None:
    await client.since("log", "hold", 1)


async def _lease(client: PersistClient, _: Any) -> None:
    await client.leased_reader("log", SCHEMA, "log")


async def _read(client: PersistClient, _: Any) -> None:
    reader = await client.reader("log", SCHEMA, "log")
    assert reader is not None
    await reader.refresh()


async def _compact(client: PersistClient, _: Any) -> None:
    compactor = await client.compactor("log")
    assert compactor is not None
    await compactor.whole()


async def _collect(client: PersistClient, _: Any) -> None:
    collector = await client.collector("log")
    assert collector is not None
    await collector.collect()


ACTS: tuple[Callable[[PersistClient, Any], Coroutine[Any, Any, None]], ...] = (
    _append,
    _open,
    _hold,
    _lease,
    _read,
    _compact,
    _collect,
)


@pytest.mark.parametrize("rolled_up", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__.strip("_"))
def test_an_older_process_refuses_what_a_newer_one_wrote_and_changes_nothing(act, opened, rolled_up) -> None:
    """Damage: half an upgraded cluster misreads the other half's states, or writes over what it does not understand."""
    location = Location()
    for time in range(2):
        run_sync(location.append(time))
    older = location.client()
    log = run_sync(older.records("log", 1)) if opened or act is _append else None
    with mock.patch.object(codec, "FORMAT", NEXT):
        run_sync(location.append(2))
        if rolled_up:
            newer = location.client()
            run_sync(newer.records("log", 1))
            run_sync(newer._machine("log").roll_up())
    objects, versions = dict(location.objects), {key: list(held) for key, held in location.versions.items()}
    with pytest.raises(StrandlineError, match=rf"'log'.*format {NEXT}.*is needed"):
        run_sync(act(older, log))
    assert (location.objects, location.versions) == (objects, versions)
    with mock.patch.object(codec, "FORMAT", NEXT):
        rows = run_sync(run_sync(location.client().records("log", 1)).contents())
    assert [record.data for record in rows] == [b"row 0", b"row 1", b"row 2"]
