"""A task begins transactions when its schedule says, by the clock that it was given."""

from __future__ import annotations

from strandline.materialize.schedule import Pace, Schedule
from strandline.testing.doubles import HandClock

START = 1_700_000_000_000
EVERY = 600_000


def test_a_transaction_begins_at_most_every_so_often() -> None:
    """Damage: a warehouse that bills each query is billed for each tick."""
    clock = HandClock(START)
    pace = Pace(Schedule(EVERY), clock)
    pace.follows(START - 1)
    begun = []
    for _ in range(100):
        if pace.begins(clock.now):
            begun.append(clock.now)
        clock.now += 60_000
    assert begun == list(range(START + EVERY, START + 6_000_000, EVERY))


def test_a_task_that_has_never_begun_waits_for_nothing() -> None:
    """Damage: a new materialization is empty for as long as its interval is."""
    assert Pace(Schedule(EVERY), HandClock(START)).begins(START)


def test_a_window_holds_the_first_transaction_back_too() -> None:
    """Damage: the largest transaction of all runs in the hours that were to be kept free."""
    clock = HandClock(START)  # 22:13:20
    pace = Pace(Schedule.of(0, "08:00-09:00 UTC"), clock)
    assert not pace.begins(clock.now)
    assert pace.waits == "it waits for its schedule: its next transaction begins at 2023-11-15T08:00:00+00:00"
    assert not pace.due
    clock.now = 1_700_035_200_000
    assert pace.due
    assert pace.begins(clock.now)
    assert (pace.waits, pace.due) == ("", False)


def test_one_that_is_hurried_need_not_wait_and_the_next_one_waits_again() -> None:
    """Damage: `strandline sync` does nothing, or a task that was hurried once never keeps its schedule again."""
    pace = Pace(Schedule.of(EVERY, "08:00-09:00 UTC"), HandClock(START))
    pace.follows(START)
    pace.hurry(START + 5)
    assert not pace.begins(START + 4), "what was there when it was asked for is not complete yet"
    assert pace.due, "it is the next tick that completes it"
    assert pace.begins(START + 5)
    assert not pace.due
    pace.hurry(START + 5)  # as each tick says until the endpoint is there
    assert not pace.begins(START + 6)
    assert not pace.due


def test_a_clock_that_is_set_back_delays_by_no_more_than_the_interval() -> None:
    """Damage: a task stands still until the clock is where it was."""
    clock = HandClock(START)
    pace = Pace(Schedule(EVERY), clock)
    assert pace.begins(clock.now)
    clock.now -= 10 * EVERY
    assert not pace.begins(clock.now)
    clock.now += EVERY
    assert pace.begins(clock.now)
