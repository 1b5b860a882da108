"""An inspection shows a shard as it is."""

from __future__ import annotations

from strandline.frontier import Frontier
from strandline.persist.shard.holds import LEASE_MS
from strandline.persist.shard.trace import Merged
from strandline.persist.upkeep.collect import LEAKED_AFTER_MS, Holder
from strandline.testing.simulation.kernel import run_sync


def looked_at(place, **options):
    """Inspect in a process of its own, which must change nothing."""
    versions, objects = len(place.versions["s"]), dict(place.objects)
    found = run_sync(place.client(**options).inspect("s"))
    assert (len(place.versions["s"]), place.objects) == (versions, objects)
    return found


def test_a_shard_that_does_not_exist_is_not_shown(place):
    """Damage: an inspection creates the shard."""
    assert run_sync(place.client().inspect("s")) is None
    assert place.versions == {}


def test_the_holders_of_since_are_listed_the_furthest_back_first(place):
    """Damage: an operator cannot find out why a collection's history is kept."""
    writer = place.writer()
    place.append(writer, 0, 9)
    reader = run_sync(place.client().leased_reader("s", place.schema, "s"))
    run_sync(run_sync(place.client().since("s", "history", 3)).downgrade(Frontier(4)))
    run_sync(reader.refresh())
    seqno = reader.state.seqno
    run_sync(reader.downgrade_since(Frontier(2)))
    place.clock.now += 60_000
    place.append(writer, 9, 10)
    (leased,) = place.state().leased
    assert looked_at(place).holders == (
        Holder(leased, Frontier(2), seqno=seqno, lease_left_ms=LEASE_MS - 60_000),
        Holder("history", Frontier(4), opaque=3),
    )


def test_bytes_are_live_held_or_leaked(place):
    """Damage: a store that fills up cannot be explained."""
    writer = place.writer()
    for at in range(3):
        staged = place.stage("s", at, at + 1, [["k", at, 1]], inline=1 << 14 if at == 2 else 0)
        run_sync(writer.compare_and_append([staged], Frontier(at), Frontier(at + 1)))
    live = sum(len(data) for key, data in place.objects.items() if "/parts/" in key)
    shown = looked_at(place)
    assert (shown.bytes.live, shown.bytes.held_objects, shown.bytes.leaked_objects) == (live, 0, 0)
    assert (shown.bytes.inline, shown.versions) == (place.state().inline_bytes, 6)
    assert [(b.lower.at, b.upper.at, b.rows, b.parts) for b in shown.batches] == [
        (0, 1, 1, 1),
        (1, 2, 1, 1),
        (2, 3, 1, 1),
    ]
    run_sync(place.blob.set(f"{writer.stage_prefix()}part", b"12345"))
    place.clock.now += LEAKED_AFTER_MS + 1
    assert run_sync(run_sync(place.client(place.engine).compactor("s")).whole()) == Merged()
    shown = looked_at(place)
    assert (shown.bytes.held_objects, shown.bytes.leaked_objects, shown.bytes.leaked) == (2, 1, 5)
