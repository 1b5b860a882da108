"""Times only go forward, whatever the clock does."""

from __future__ import annotations

import pytest

from strandline.controller.writing import Oracle
from strandline.errors import InvalidUsage
from strandline.testing.doubles import HandClock


def test_times_strictly_increase_although_the_clock_steps_back() -> None:
    """Else two ticks would share a time, or a commit would land in the past."""
    clock = HandClock(1000)
    oracle = Oracle(clock, 0)
    first = oracle.next()
    clock.now = 10
    second = oracle.next()

    assert (first, second) == (1000, 1001)


def test_what_was_given_out_before_a_restart_is_not_given_again() -> None:
    """Else a restart after a clock step would commit before what is sealed."""
    assert Oracle(HandClock(5), 7000).next() == 7000


def test_a_time_can_be_asked_for_once_and_not_in_the_past() -> None:
    """Else a replayed schedule would silently use other times."""
    oracle = Oracle(HandClock(0), 10)

    assert oracle.next(50) == 50
    with pytest.raises(InvalidUsage, match="next free one is 51"):
        oracle.next(50)
    for wanted in (60.0, "60", True, 2**63):
        with pytest.raises(InvalidUsage, match="is not a whole number"):
            oracle.next(wanted)
    oracle.passed(90)
    assert oracle.next() == 90
