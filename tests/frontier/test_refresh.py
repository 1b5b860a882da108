"""Refreshes round times up as the known cases say, which are data, and as a list of all refreshes does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from strandline.frontier import EMPTY, TIME_MAX, Every, Frontier, Refresh

CASES = json.loads((Path(__file__).parent.parent / "cases" / "refresh_rounding.json").read_text())["cases"]
GREATEST = 2**64 - 1
"""The greatest time of the cases; ours is less."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['ats']} {case['everies']}")
def test_times_are_rounded_as_the_cases_say(case) -> None:
    """Damage: a view changes at another time than its schedule says.

    The cases count from 0 where no refresh is before, if there is an interval; and a time near their greatest one
    stands for the time as near to ours.
    """
    refresh = Refresh(tuple(Every(*each) for each in case["everies"]), tuple(case["ats"]), created=0)
    for row in case["rows"]:
        before, up, time = row if row[2] <= TIME_MAX else _nearer(*row, interval=100 if refresh.everies else 0)
        found = refresh.before(time)
        assert (found or 0 if refresh.everies else found, refresh.up(time)) == (before, up), time


def _nearer(before: int, up: int | None, time: int, interval: int) -> tuple[int, int | None, int]:
    time -= GREATEST - TIME_MAX
    return (
        time - 1 - (time - 1) % interval if interval else before,
        None if up is None else up - (GREATEST - TIME_MAX),
        time,
    )


@pytest.mark.parametrize("seed", range(200))
def test_refreshes_are_those_of_a_list_of_all(seed: int) -> None:
    """Damage: a refresh is left out, or made before the view was created."""
    chance = random.Random(seed)
    everies = tuple(
        Every(chance.randint(1, 20), chance.choice([None, chance.randint(0, 60)])) for _ in range(chance.randint(0, 2))
    )
    ats = tuple(chance.randint(0, 60) for _ in range(chance.randint(0, 3)))
    created = chance.randint(0, 40)
    refresh = Refresh(everies, ats, chance.random() < 0.3, created)
    last = 100
    listed = set(ats) | ({created} if refresh.at_creation else set())
    for every in everies:
        begin = created if every.aligned_ms is None else every.aligned_ms
        listed |= {time for time in range(last) if (time - begin) % every.interval_ms == 0}
    refreshes = sorted(time for time in listed if created <= time)
    for time in range(last - 20):
        up = next((each for each in refreshes if time <= each), None)
        assert refresh.up(time) == up
        assert refresh.before(time) == next((each for each in reversed(refreshes) if each < time), None)
        assert refresh.frontier(time) == (EMPTY if up is None else Frontier(up))


def test_without_a_creation_there_is_no_refresh() -> None:
    """Damage: a view is refreshed before what it reads was complete."""
    refresh = Refresh((Every(5, 0),), (7,), at_creation=True)
    assert (refresh.up(3), refresh.before(30)) == (None, None)
