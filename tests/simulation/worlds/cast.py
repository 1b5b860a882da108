"""The users in a history of the world of persist: a few of all that exist, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from laws.broken import LawBrokenError
from strandline.errors import CorruptionError, InvalidUsage
from worlds.keepers import collect, compact, merge_beside, sweep, turn_clocks
from worlds.persist import World
from worlds.readers import hold, lease, listen, read
from worlds.tries import too_old, under_epochs
from worlds.users import add_words, apply, commit, keep_records, write

Life: TypeAlias = Callable[[World, str], Coroutine[Any, Any, None]]

CAST: Final[dict[str, tuple[int, Life]]] = {
    "w1": (5, partial(under_epochs, write)),
    "w2": (5, partial(under_epochs, write)),
    "l1": (4, partial(under_epochs, keep_records)),
    "l2": (6, partial(under_epochs, keep_records)),
    "c1": (12, partial(under_epochs, commit)),
    "c2": (8, partial(under_epochs, commit)),
    "p1": (12, partial(under_epochs, apply)),
    "g1": (3, add_words),
    "g2": (3, add_words),
    "r1": (4, read),
    "r2": (6, read),
    "r3": (5, listen),
    "s1": (8, hold),
    "s2": (8, hold),
    "h1": (5, lease),
    "h2": (5, lease),
    "m1": (4, compact),
    "m2": (2, merge_beside),
    "x1": (4, collect),
    "x2": (1, sweep),
    "k1": (5, turn_clocks),
}
"""Each user, and in one of how many histories it takes part: a user with much I/O takes part less often."""
NEEDED: Final = ("w1", "w1", "w1", "l1", "l1", "l1", "c1")
"""One of these is always there: in every history something is appended."""


def populate(world: World) -> None:
    """Choose this run's users and start them."""
    there = [name for name, (n, _) in CAST.items() if world.choose("there", n) == 0]
    if not set(NEEDED) & set(there):
        there.append(world.one_of("needed", NEEDED))
    for name in there:
        world.simulation.spawn(name, lambda _, name=name: _live(world, name))


async def _live(world: World, name: str) -> None:
    """Live; begin anew, as after a crash, when damaged bytes were refused."""
    while True:
        try:
            return await CAST[name][1](world, name)
        except InvalidUsage as error:
            if too_old(error):
                raise LawBrokenError("swept", f"what is committed can never be applied: {error}") from error
            raise
        except CorruptionError:
            if not world.damages:
                raise
            world.marks["damage refused"] += 1
