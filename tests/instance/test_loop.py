"""Loops: a turn that begins afterwards hears each caller that woke it, and no caller has to wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.errors import FencedError
from strandline.instance.loop import Loop, bring
from strandline.instance.running.views import Lanes
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import Inline
from strandline.store.unreliable import Choose
from strandline.testing.doubles import HandClock
from strandline.testing.simulation.exploration import every_list
from strandline.testing.simulation.kernel import Fate, IoPoint, Simulation, run_sync
from strandline.testing.simulation.places import SimClock


def step(site: str) -> IoPoint[None]:
    """Return an I/O that does nothing."""
    return IoPoint(site, (), lambda: None, (Fate.DONE,))


def woken_thrice(choose: Choose) -> int:
    """Wake a loop three times, in the order that is chosen; return how many turns that made."""
    simulation = Simulation(choose, (Fate.DONE,))
    asked, heard, begun, ended = 0, 0, 0, 0

    async def turn() -> None:
        nonlocal heard, begun, ended
        assert begun == ended, "two turns overlap"
        begun, known = begun + 1, asked
        await step("turn")
        heard, ended = known, ended + 1

    async def actor(_: int) -> None:
        nonlocal asked
        loop = Loop(simulation.beside, turn)
        for _ in range(3):
            asked += 1
            loop.wake()
            await step("goes on")
        assert await loop.rest()
        assert heard == 3
        assert loop.resting

    simulation.spawn("a", actor)
    simulation.drive()
    return ended


def test_in_every_order_each_wake_is_heard_by_a_turn_that_begins_afterwards_and_no_turns_overlap() -> None:
    """Damage: a source is woken for a new time in the middle of a turn, and rests without having looked again."""
    assert {woken_thrice(choose) for choose in every_list()} == {1, 2, 3}


def drive(live: Callable[[Simulation], object]) -> None:
    """Run one actor in fair weather."""
    simulation = Simulation(lambda label, n: 0)
    simulation.spawn("a", lambda _: live(simulation))  # type: ignore[arg-type,return-value]
    simulation.drive()


def test_a_deadline_ends_the_wait_and_not_the_turn() -> None:
    """Damage: one silent endpoint holds every tick, or what it did until then is thrown away."""
    ended: list[int] = []

    async def live(simulation: Simulation) -> None:
        clock = SimClock(simulation)

        async def turn() -> None:
            await clock.sleep(1)
            ended.append(simulation.now_ms)

        loop = Loop(simulation.beside, turn)
        loop.wake()
        begun = simulation.now_ms
        assert not await loop.rest(Deadline(clock, 0.1))
        assert 100 <= simulation.now_ms - begun < 200
        assert ended == []
        begun = simulation.now_ms
        assert await bring({"a": loop}, Deadline(clock, 0.5)) == {"a"}, "its turn began before: it is not waited for"
        assert simulation.now_ms == begun
        assert loop.again
        assert await loop.rest()
        assert len(ended) == 2

    drive(live)


def test_what_a_turn_raises_is_raised_once_and_the_loop_goes_on() -> None:
    """Damage: a bug in a turn is swallowed by the task that it ran in, or stops the item for ever."""
    raised: list[Exception] = [ValueError("a bug")]
    turns: list[str] = []

    async def turn() -> None:
        turns.append("turn")
        if raised:
            raise raised.pop()

    loop = Loop(Inline, turn)
    loop.wake()
    with pytest.raises(ValueError, match="a bug"):
        run_sync(loop.rest())
    assert run_sync(loop.rest())
    loop.wake()
    assert run_sync(loop.rest())
    assert turns == ["turn", "turn"]


def test_what_an_older_turn_raised_is_said_while_the_next_one_is_not_waited_for() -> None:
    """Damage: a process that was taken over is never told so, as each of its ticks finds the source in a slow turn."""

    async def live(simulation: Simulation) -> None:
        clock = SimClock(simulation)
        failures: list[Exception] = [ValueError("a bug")]

        async def turn() -> None:
            await clock.sleep(1)
            if failures:
                raise failures.pop()

        loop = Loop(simulation.beside, turn)
        loop.wake()
        await clock.sleep(0.5)
        loop.wake()
        await clock.sleep(1)  # the first turn has failed, and the second is under way
        with pytest.raises(ValueError, match="a bug"):
            await bring({"a": loop}, Deadline(clock, 9))
        assert await bring({"a": loop}, Deadline(clock, 9)) == {"a"}

    drive(live)


def test_a_loop_whose_item_was_taken_over_makes_no_turn_more_and_says_so_each_time() -> None:
    """Damage: a fenced process goes on asking an upstream that another process reads."""
    turns: list[str] = []

    async def turn() -> None:
        turns.append("turn")
        raise FencedError("taken over")

    loop = Loop(Inline, turn)
    for _ in range(3):
        loop.wake()
        with pytest.raises(FencedError):
            run_sync(loop.rest())
    assert turns == ["turn"]


def test_a_loop_that_is_ended_rests_until_it_is_woken_again() -> None:
    """Damage: a dropped source goes on reading, or one that was defined anew never reads."""
    reached: list[str] = []

    async def live(simulation: Simulation) -> None:
        async def turn() -> None:
            reached.append("begins")
            await SimClock(simulation).sleep(1)
            reached.append("ends")

        loop = Loop(simulation.beside, turn)
        loop.wake()
        await step("it begins")
        await loop.end()
        assert loop.resting
        assert await loop.rest()
        assert reached == ["begins"]
        loop.wake()
        assert await loop.rest()
        assert reached == ["begins", "begins", "ends"]

    drive(live)


def test_a_turn_that_turns_its_end_into_another_failure_is_the_last_one() -> None:
    """Damage: an endpoint that fails as it is closed begins anew, and the process that is to end waits for it."""
    begun: list[str] = []

    async def live(simulation: Simulation) -> None:
        async def turn() -> None:
            begun.append("begins")
            try:
                await SimClock(simulation).sleep(1)
            finally:
                raise OSError("it cannot be closed")

        loop = Loop(simulation.beside, turn)
        loop.wake()
        await step("it begins")
        loop.wake()
        await loop.end()
        assert begun == ["begins"]
        assert loop.resting

    drive(live)


def test_without_an_event_loop_the_caller_that_waits_makes_the_turn() -> None:
    """Damage: what runs over lists, without an event loop, never does what it was woken for."""
    turns: list[str] = []

    async def turn() -> None:
        turns.append("turn")

    loop = Loop(Inline, turn)
    loop.wake()
    loop.wake()
    assert turns == []
    assert run_sync(loop.rest(Deadline(HandClock(), 1)))
    assert turns == ["turn"]
    loop.wake()
    run_sync(loop.end())
    assert turns == ["turn"]


def test_what_waits_for_a_lane_when_all_are_ended_is_stepped_no_more() -> None:
    """Damage: a replica that has to run nothing goes on with the views that stood in line, and says they run."""
    stepped: list[str] = []

    async def live(simulation: Simulation) -> None:
        async def alone(run: Any) -> None:
            stepped.append(run.name)
            await SimClock(simulation).sleep(1)

        lanes = Lanes(simulation.beside, 1, alone)
        for name in "ab":
            lanes.take(SimpleNamespace(name=name))  # type: ignore[arg-type]
        await step("it begins")
        await lanes.end()
        assert lanes.held == frozenset()
        lanes.take(SimpleNamespace(name="c"))  # type: ignore[arg-type]
        assert await lanes.rest(None, frozenset())
        assert stepped == ["a", "c"]

    drive(live)
