"""The leases of what was queried: they hold what is being read, and nothing that was dropped."""

from __future__ import annotations

import pytest
from promoted import Location, Process
from test_replacing import execute

from strandline.bench.environment import ITEMS
from strandline.controller.asking.reads import snapshot
from strandline.controller.holding import Hold
from strandline.controller.location.config import Mode
from strandline.persist.shard.holds import BEAT_MS
from strandline.persist.shard.state import ShardState
from strandline.testing.simulation.kernel import run_sync


def beaten(location: Location, process: Process) -> None:
    """Let a beat's time pass, and beat."""
    location.clock.now += BEAT_MS
    run_sync(process.core.readers.beat())


def at(process: Process, shard: str) -> ShardState:
    """The newest state of a shard."""
    run_sync(process.core.client.look(shard))
    return process.core.client.state_of(shard)


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.READ])
def test_what_was_dropped_is_deleted_though_a_process_that_queried_it_lives(mode: Mode) -> None:
    """Damage: a dashboard that once read a table keeps its parts for ever, and adds a version at each beat."""
    location = Location()
    writer = location.run({"items": f"CREATE TABLE items ({ITEMS})"})
    location.tick(writer)
    asking = writer if mode is Mode.FULL else location.open(mode)
    run_sync(asking.core.look())
    shard, hold = writer.core.catalog.collection("items").shard, Hold()
    reader = run_sync(asking.core.readers.holding("items"))
    run_sync(snapshot(asking.core, reader, location.times[-1], hold))
    execute(writer, "DROP TABLE items")
    for _ in range(5):
        beaten(location, asking)
    assert at(writer, shard).leased, "a query that is under way keeps its lease"
    hold.give_back()
    beaten(location, asking)
    assert not at(writer, shard).leased
    versions = len(location.versions[shard])
    for _ in range(5):
        beaten(location, asking)
    assert len(location.versions[shard]) == versions
    run_sync(writer.core.client.clear(shard))
    assert at(writer, shard).tombstone


def test_what_is_still_there_is_held_between_two_queries() -> None:
    """Damage: what a program planned its next query over is gone by the time that it asks."""
    location = Location()
    writer = location.run({"items": f"CREATE TABLE items ({ITEMS})"})
    location.tick(writer)
    run_sync(writer.core.readers.holding("items"))
    for _ in range(5):
        beaten(location, writer)
    assert at(writer, writer.core.catalog.collection("items").shard).leased
