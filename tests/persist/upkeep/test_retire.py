"""Dropping a shard: closed for good, its critical holds released, and emptied once no reader has a lease."""

from __future__ import annotations

import pytest

from strandline.errors import FencedError
from strandline.frontier import Frontier
from strandline.persist.shard.holds import LEASE_MS
from strandline.persist.shard.state import UpperMismatch
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def collecting(place):
    """A process that collects garbage without a grace period."""
    return place.client(place.engine, grace_ms=0)


def filled(place, client, *, held=True):
    """A shard with parts."""
    writer = place.writer(client=client)
    for n in range(3):
        staged = place.stage("s", n, n + 1, [["a", n, 1]], inline=0, prefix=writer.stage_prefix())
        run_sync(writer.compare_and_append([staged], Frontier(n), Frontier(n + 1)))
    if held:
        run_sync(client.since("s", "history", 1))
    return writer


def parts_of(place):
    """The parts that are there."""
    return [key for key in place.objects if "/parts/" in key]


@pytest.mark.parametrize("outcome", Outcome)
def test_a_dropped_shard_is_closed_and_deleted_although_readers_held_it_by_name(place, outcome):
    """Damage: dropped tables stay in the location for ever, and cost storage."""
    client = collecting(place)
    writer = filled(place, client)
    place.plan.append(outcome)
    run_sync(client.close_shard("s", 1))
    run_sync(place.consensus.land())
    assert (parts_of(place), place.state().tombstone) == ([], True)
    assert isinstance(run_sync(writer.compare_and_append([], Frontier(3), Frontier(4))), UpperMismatch)
    versions = len(place.versions["s"])
    run_sync(client.close_shard("s", 1))
    assert len(place.versions["s"]) == versions


def test_a_shard_without_holds_is_dropped_too(place):
    """Damage: the shards of a view's stages, which no hold keeps, are never deleted."""
    client = collecting(place)
    filled(place, client, held=False)
    run_sync(client.close_shard("s", 1))
    assert parts_of(place) == []


def test_a_lease_keeps_a_dropped_shard_until_it_ends(place):
    """Damage: a query of another process loses its rows in the middle."""
    client = collecting(place)
    filled(place, client)
    reader = run_sync(place.client().leased_reader("s", place.schema, "t"))
    run_sync(client.close_shard("s", 1))
    run_sync(reader.refresh())
    assert run_sync(reader.snapshot(2)).batches
    assert len(parts_of(place)) == 3
    place.clock.now += LEASE_MS + 1
    run_sync(client.clear("s"))
    assert parts_of(place) == []


def test_an_older_epoch_drops_nothing(place):
    """Damage: an environment that was replaced deletes what its successor writes."""
    client = collecting(place)
    filled(place, client)
    place.writer(epoch=2)
    with pytest.raises(FencedError, match="epoch 2"):
        run_sync(client.close_shard("s", 1))
    assert not place.state().upper.empty
