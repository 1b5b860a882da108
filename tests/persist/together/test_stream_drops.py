"""A dropped stream is closed, and deleted once no reader holds it."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError, FencedError, InvalidUsage
from strandline.persist.handles.updates import Update
from strandline.persist.shard.holds import LEASE_MS
from strandline.persist.together.stream import StreamClient
from strandline.testing.simulation.kernel import run_sync
from streams_in_use import client, opened, read, resolved, rows, words


def test_a_dropped_collection_is_closed_and_its_name_means_another_one(place):
    """Damage: a process that has the old one open writes into the new one, or loses its writes silently."""
    process = client(place)
    old, reader = opened(place, "n", process=process)
    resolved(old.write([("a", 1, 1)]))
    assert run_sync(process.drop("n"))
    assert not run_sync(process.drop("n"))
    with pytest.raises(InvalidUsage, match=r"sealed up to \[\]"):
        resolved(old.write([("b", 2, 1)]))
    with pytest.raises(AsOfError):
        read(reader, 5)
    new, reader = opened(place, "n", codec=rows)
    resolved(new.seal(3))
    assert read(reader, 2) == []


def test_a_slow_drop_does_not_drop_a_collection_that_was_created_anew(place, monkeypatch):
    """Damage: a living collection loses its name, and with it all that was acknowledged."""
    opened(place, "n")
    slow, new = client(place), []
    drop_name = slow._names.drop

    async def overtaken(*given, **how):
        await client(place).drop("n")
        write, reader = await client(place).create_or_load("n", words(place))
        write.write([("a", 1, 1)])
        await write.seal(2)
        new.append(reader)
        await drop_name(*given, **how)

    monkeypatch.setattr(slow._names, "drop", overtaken)
    assert run_sync(slow.drop("n"))
    _, reader = opened(place, "n")
    assert read(reader, 1) == read(new[0], 1) == [("a", 1)]


def collecting(place, grace_ms=0):
    """A process that collects garbage."""
    return place.client(place.engine, grace_ms=grace_ms)


def parts_of(place):
    """The parts that are there."""
    return [key for key in place.objects if "/parts/" in key]


@pytest.mark.parametrize("grace_ms", [0, 1_000])
def test_a_dropped_collection_is_deleted(place, grace_ms):
    """Damage: a location keeps dropped collections for ever."""
    one = collecting(place, grace_ms)
    process = StreamClient(one, 1)
    write, _ = opened(place, "n", process=process)
    for n in range(3):
        write.write([("x" * 20_000, n, 1)])
    resolved(write.seal(2))
    assert len(parts_of(place)) >= 2
    run_sync(process.drop("n"))
    shard = write._writer.shard
    if grace_ms:
        assert parts_of(place), "a reader without a hold may still be reading"
        assert not run_sync(gc(one, shard)).parts
        place.clock.now += grace_ms
        assert run_sync(gc(one, shard)).parts
    assert parts_of(place) == []
    assert len(place.versions[shard]) == 3, "and what older versions held inline"
    assert run_sync(gc(one, shard)).nothing


async def gc(process, shard):
    """Collect as `strandline gc --apply` does, and check that its preview is right."""
    expected = await (await process.collector(shard)).preview()
    done = await (await process.collector(shard)).collect()
    assert (expected.parts, expected.doomed) == (done.parts, done.doomed)
    return done


@pytest.mark.parametrize("dies", [False, True])
def test_a_dropped_collection_stays_as_long_as_a_lease_holds_it(place, dies):
    """Damage: a query loses its rows in the middle; or one reader that crashed keeps them for ever."""
    one = collecting(place)
    process = StreamClient(one, 1)
    write, _ = opened(place, "n", process=process)
    write.write([("x" * 20_000, 1, 1)])
    resolved(write.seal(2))
    shard = write._writer.shard
    leased = run_sync(place.client().leased_reader(shard, words(place).schema, "n"))
    run_sync(process.drop("n"))
    assert not run_sync(gc(one, shard)).parts
    assert run_sync(words(place).read(run_sync(leased.snapshot(1)))) == [Update("x" * 20_000, 1, 1)]
    if dies:
        place.clock.now += LEASE_MS + 1
    else:
        run_sync(leased.close())
    assert run_sync(gc(one, shard)).parts == 1
    assert parts_of(place) == []
    with pytest.raises(AsOfError):
        run_sync(leased.refresh()), run_sync(leased.snapshot(1))


def test_a_process_that_does_not_collect_garbage_drops_and_deletes_nothing(place):
    """Damage: parts are deleted under readers that the collector of the location spares."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    resolved(write.write([("x" * 20_000, 1, 1)]))
    run_sync(process.drop("n"))
    assert len(parts_of(place)) == 1


def test_an_older_client_drops_nothing(place):
    """Damage: an environment that was succeeded throws away what its successor writes."""
    old = client(place)
    new, reader = opened(place, "n", process=client(place, epoch=2))
    with pytest.raises(FencedError):
        run_sync(old.drop("n"))
    resolved(new.write([("a", 1, 1)]))
    resolved(new.seal(2))
    assert read(reader, 1) == [("a", 1)]
