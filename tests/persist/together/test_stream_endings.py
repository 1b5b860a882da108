"""Stopping or cancelling leaves no call undone and no refusal unreported."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from strandline.errors import FencedError, Indeterminate, InvalidUsage, Stopped, Unavailable
from strandline.persist.client import PersistClient
from strandline.persist.handles.updates import ValueCodec
from strandline.persist.together.stream import StreamClient
from strandline.persist.together.unsealed import UNRAISED_MAX
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.exploration import Listed, Seeded
from strandline.testing.simulation.kernel import Fate, IoPoint, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds
from streams_in_use import client, opened, read, resolved, words


def test_stopping_finishes_earlier_calls_and_refuses_later_ones(place):
    """Damage: the last writes of a process that ends in order are lost."""
    process = client(place)
    write, reader = opened(place, "n", process=process)
    calls = [write.write([("a", 1, 1)]), write.seal(2)]
    run_sync(process.stop())
    assert all(call.done for call in calls)
    assert read(reader, 1) == [("a", 1)]
    for refused in (lambda: write.write([("b", 2, 1)]), lambda: write.seal(9), process.clone):
        with pytest.raises(Stopped):
            refused()
    with pytest.raises(Stopped):
        opened(place, "m", process=process)
    run_sync(process.stop())


@pytest.mark.parametrize("leave", ["stop", "async with"])
def test_stop_raises_refusals_of_calls_that_were_never_awaited(place, leave):
    """Damage: a program ends without an error, and its last writes are lost."""

    async def run(process, *steps):
        async with process:
            write, _ = await process.create_or_load("n", words(place))
            calls = [step(write) for step in steps]
            if leave == "stop":
                await process.stop()
        return calls

    run_sync(run(client(place), lambda write: write.seal(5)))
    late = [lambda write, n=n: write.write([(f"late {n}", n, 1)]) for n in range(3)]
    with pytest.raises(InvalidUsage, match=r"cannot write at \[0\]") as raised:
        run_sync(run(client(place), *late, lambda write: write.write([("good", 5, 1)])))
    assert raised.value.__notes__ == ["3 refused calls were never awaited; this is the refusal of one"]
    old = client(place)
    write, reader = opened(place, "n", process=old)
    write.write([("late", 1, 1)])
    run_sync(old._line.drive())
    opened(place, "n", process=client(place, epoch=2))
    write.write([("lost", 6, 1)])
    with pytest.raises(FencedError, match="epoch 2"):
        run_sync(old.stop())
    run_sync(old.stop())
    resolved(opened(place, "n", process=client(place, epoch=2))[0].seal(7))
    assert read(reader, 6) == [("good", 1)]


def test_stop_does_not_raise_a_refusal_that_was_awaited(place):
    """Damage: a program that handles its refusals cannot stop without an error."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    write.seal(5)
    with pytest.raises(InvalidUsage):
        resolved(write.write([("late", 1, 1)]))
    run_sync(process.close())


def test_an_error_in_the_block_is_not_replaced_by_the_error_of_closing(place):
    """Damage: the error that ended a program is hidden behind another."""

    async def run():
        async with client(place) as process:
            write, _ = await process.create_or_load("n", words(place))
            write.seal(5), write.write([("late", 1, 1)])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        run_sync(run())
    assert "could not be closed in order: shard" in raised.value.__notes__[0]


def test_only_the_newest_refusals_are_kept_for_stop(place):
    """Damage: the memory of a program with late writes grows for ever, or it never learns that it is fenced."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    write.seal(5)
    for _ in range(UNRAISED_MAX + 9):
        write.write([("late", 1, 1)])
    run_sync(process._line.drive())
    assert len(process._line._unraised) == UNRAISED_MAX
    opened(place, "n", process=client(place, epoch=2))
    write.write([("lost", 6, 1)])
    with pytest.raises(FencedError):
        run_sync(process.stop())


def test_the_last_clone_to_leave_stops_and_all_clones_share_one_order(place):
    """Damage: one user of a client stops the others, or the client is never stopped."""
    one = client(place)
    two = one.clone()
    a, reader = opened(place, "n", process=one)
    b, _ = opened(place, "n", process=two)
    calls = [a.write([("a", 1, 1)]), b.seal(2), a.write([("b", 2, 1)])]
    run_sync(one.close())
    run_sync(one.close())
    assert not calls[0].done, "a clone is still there"
    run_sync(two.close())
    assert [call.refusal for call in calls] == [None] * 3
    assert read(reader, 1) == [("a", 1)]
    with pytest.raises(Stopped):
        a.seal(3)


ACTORS = 4


def together(seed, fates):
    """Actors of one process share a client and await calls at once; return the answers, and the contents."""
    simulation = Simulation(Seeded(random.Random(seed)), fates, calm_after=400)
    blob, consensus, ids = MemoryBlob(), MemoryConsensus(), SimIds()
    codec = ValueCodec(SimBlob(blob), "text", str.encode, bytes.decode)
    process = StreamClient(PersistClient(SimClock(simulation), ids, SimBlob(blob), SimConsensus(consensus)), 1)
    opening = Simulation(Listed([]))
    acknowledged = []

    async def open_it():
        acknowledged.append(await process.create_or_load("n", codec))

    opening.spawn("open", lambda _: open_it())
    opening.drive()
    write, _ = acknowledged.pop()

    async def act(name):
        for n in range(3):
            soon = write.upper.at  # which another actor may seal first
            calls = [write.write([(f"{name}.{n}", 500 if n else soon, 1)]), write.seal(soon + 1)]
            for call in calls[:: 1 if n % 2 else -1]:
                while not call.done:
                    with suppress(Indeterminate, Unavailable, InvalidUsage):
                        await call
            if calls[0].refusal is None:
                acknowledged.append(f"{name}.{n}")

    for number in range(ACTORS):
        simulation.spawn(f"a{number}", lambda crashes, name=f"a{number}": None if crashes else act(name))
    simulation.drive()
    after = StreamClient(PersistClient(HandClock(), CountingIds("after"), blob, consensus), 2)
    last, reader = run_sync(after.create_or_load("n", ValueCodec(blob, "text", str.encode, bytes.decode)))
    resolved(last.seal(999))
    return acknowledged, read(reader, 998)


@pytest.mark.parametrize("seed", range(60))
def test_all_concurrent_awaits_return_and_after_a_cancellation_the_next_task_drives(seed):
    """Damage: one of two tasks waits for ever; or a cancelled task loses other tasks' writes, or repeats them."""
    fates = (Fate.DONE,) if seed % 3 == 0 else tuple(Fate)
    acknowledged, there = together(seed, fates)
    values = [value for value, diff in there for _ in range(diff)]
    assert len(set(values)) == len(values), "nothing is done twice"
    assert set(acknowledged) <= set(values), "acknowledged writes are stored"
    if seed % 3 == 0:
        assert sorted(acknowledged) == values
        assert len(acknowledged) > 2 * ACTORS, "all actors completed some writes"


def test_a_task_that_is_cancelled_while_it_drives_leaves_the_queue_to_the_next(place):
    """Damage: a request that is cancelled blocks all others for ever."""
    write, reader = opened(place, "n")
    first, second = write.write([("a", 1, 1)]), write.seal(2)

    place.consensus.compare_and_set = lambda request: IoPoint("a store that takes its time", (), lambda: None)
    driver = first.__await__()
    next(driver)
    driver.close()
    del place.consensus.compare_and_set
    resolved(second)
    assert read(reader, 1) == [("a", 1)]
