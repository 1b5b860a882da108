"""Calls that run beside an actor are one process with it: scheduled apart, crashed and ended together."""

from __future__ import annotations

import random
from asyncio import CancelledError
from functools import partial

import pytest

from strandline.store.memory import MemoryBlob
from strandline.store.unreliable import Choose
from strandline.testing.simulation.exploration import Listed, Seeded, every_list
from strandline.testing.simulation.kernel import Fate, Simulation, StepBudgetExceeded, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock

CALM = Listed(())


async def put(blob: SimBlob, keys: str) -> None:
    """Set one key after the other."""
    for key in keys:
        await blob.set(key, b"")


def interleaved(choose: Choose) -> str:
    """Let an actor and a call beside it make two steps each; return whose steps came in which order."""
    simulation, order = Simulation(choose, (Fate.DONE,)), ""

    async def steps(name: str) -> None:
        nonlocal order
        for _ in range(2):
            await SimBlob(MemoryBlob()).set(name, b"")
            order += name

    async def actor(_: int) -> None:
        running = simulation.beside(partial(steps, "b"))
        await steps("a")
        assert await running.wait(None)

    simulation.spawn("a", actor)
    simulation.drive()
    return order


def test_calls_go_on_in_every_order_beside_their_caller() -> None:
    """Damage: only one order of the calls of a process is tried, so a race between two of its loops is never met."""
    met = {interleaved(choose) for choose in every_list()}
    assert met == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_at_any_of_them_ends_all_of_them(seed: int) -> None:
    """Damage: half of a process lives on after the other half has crashed, which no machine does."""
    place = MemoryBlob()
    simulation = Simulation(Seeded(random.Random(seed)), (Fate.DONE, Fate.CRASH_BEFORE, Fate.CRASH_AFTER), calm_after=9)

    async def actor(incarnation: int) -> None:
        begun.append(incarnation)
        running = simulation.beside(partial(put, SimBlob(place), f"{incarnation}x"))
        await put(SimBlob(place), f"{incarnation}y")
        await running.wait(None)
        ended.append(incarnation)

    begun: list[int] = []
    ended: list[int] = []
    simulation.spawn("a", actor)
    simulation.drive()
    assert begun == list(range(len(begun)))
    assert ended == begun[-1:], "what runs beside it ends each incarnation but the last, which comes to its end"


def test_what_is_left_beside_an_actor_ends_with_it() -> None:
    """Damage: a process that has ended goes on writing."""
    place = MemoryBlob()
    simulation = Simulation(CALM)

    async def later() -> None:
        await SimClock(simulation).sleep(60)
        await put(SimBlob(place), "late")

    async def actor(_: int) -> None:
        simulation.beside(later)
        await put(SimBlob(place), "a")

    simulation.spawn("a", actor)
    simulation.drive()
    assert run_sync(place.list("")) == ["a"]


def test_a_caller_waits_until_it_has_ended_or_for_so_long() -> None:
    """Damage: patience is never tried: a caller always waits to the end, or not at all."""
    simulation = Simulation(CALM)
    seen: list[tuple[bool, int]] = []

    async def actor(_: int) -> None:
        begun = simulation.now_ms
        running = simulation.beside(partial(SimClock(simulation).sleep, 1.0))
        for seconds in (0, 0.25, None, None):
            ended = await running.wait(seconds)
            seen.append((ended, round((simulation.now_ms - begun) / 250)))

    simulation.spawn("a", actor)
    simulation.drive()
    assert seen == [(False, 0), (False, 1), (True, 4), (True, 4)]


@pytest.mark.parametrize(("outcome", "stored"), [(0, []), (1, ["x"]), (2, ["x"])])
def test_a_call_that_is_cancelled_cleans_up_and_what_it_asked_for_may_happen(outcome: int, stored: list[str]) -> None:
    """Damage: a request that was sent is taken back by cancelling its caller, which no network does."""
    place, cleaned = MemoryBlob(), []
    simulation = Simulation(lambda label, n: outcome if label == "cancelled" else 0)

    async def call() -> None:
        try:
            await put(SimBlob(place), "xy")
        except CancelledError:
            await SimBlob(place).list("")
            cleaned.append(True)
            raise

    async def actor(_: int) -> None:
        running = simulation.beside(call)
        await SimBlob(MemoryBlob()).list("")  # meanwhile it begins, and asks for its first change
        await running.cancel()
        assert await running.wait(0)

    simulation.spawn("a", actor)
    simulation.drive()
    assert cleaned == [True]
    assert run_sync(place.list("")) == stored


def test_a_run_in_which_all_wait_for_each_other_ends_with_their_names() -> None:
    """Damage: a deadlock looks like a run that takes long."""
    simulation = Simulation(CALM)

    async def actor(_: int) -> None:
        running = simulation.beside(waits)
        held.append(running)
        await running.wait(None)

    async def waits() -> None:
        await held[0].wait(None)

    held: list = []
    simulation.spawn("a", actor)
    with pytest.raises(StepBudgetExceeded, match="all wait for ever: .*a/1 at beside.wait"):
        simulation.drive()
