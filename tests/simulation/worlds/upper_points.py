"""One fault, everywhere, in scripts over whole environments: each fate at each I/O point, or an even share of them.

What is late lands at a few later moments, ever farther apart: what is done in between is seen as often as what is near.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from worlds.one_fault import Job, OneFault, Share, Tried, calm, pairs, tried, with_each
from worlds.performer import Stage
from worlds.processors import spread
from worlds.upper_scenarios import SCRIPTS

EVERY: Final = 13
"""Of so many pairs of point and fate one is tried in the slice; no multiple of how many fates a site has."""


def landings() -> Iterator[int]:
    """Yield 0, 1, 3, 7, … for ever."""
    at = 0
    while True:
        yield at
        at = 2 * at + 1


def try_each(jobs: tuple[Job, ...], share: Share) -> dict[Job, Tried]:
    """Try scripts on all processors, with a share of the pairs of point and fate."""
    return dict(zip(jobs, spread(try_one, [(job, share) for job in jobs]), strict=True))


def try_one(asked: tuple[Job, Share]) -> Tried:
    """Try one script with one patience."""
    (name, patience), share = asked
    script = next(each for each in SCRIPTS if each.name == name)

    def run(choose: OneFault) -> None:
        Stage(choose, script, patience).perform()

    points = calm(run)
    these = share.of(pairs(points))
    return tried(points, these, with_each(run, points, these, landings))
