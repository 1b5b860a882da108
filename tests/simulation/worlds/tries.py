"""How users of the simulated world persevere: how often they try, how much they have to do, under which epoch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from strandline.errors import Determinate, FencedError, Indeterminate, InvalidUsage, Unavailable
from strandline.frontier.antichain import Frontier
from strandline.persist.client import PersistClient
from worlds.persist import ACKNOWLEDGED_MIN, World

TRIES_MAX: Final = 200
"""How often one thing is tried: never reached by what makes progress."""
UNANSWERED: Final = (Indeterminate, Determinate, Unavailable)

APPENDS: Final = (2, 4, 6)
COMMITS: Final = (2, 3)
LOOKS: Final = (2, 3)
"""How many things a user has to do, by how much each of them takes; which of these is part of the seed."""
IDLE_S: Final = (0, 0.02, 2, 1_000)
"""How long somebody does nothing: up to longer than any lease."""

Work: TypeAlias = Callable[[World, PersistClient, str, int], Coroutine[Any, Any, None]]


async def under_epochs(work: Work, world: World, name: str) -> None:
    """Do ``work`` under an epoch; when fenced, stop, or do it under a newer one."""
    client = world.client(name)
    epoch = world.epoch()
    while True:  # two who fence each other do not do so for ever: the one who gives up first leaves the other in peace
        try:
            await until_answered(lambda epoch=epoch: work(world, client, name, epoch))
            return
        except FencedError:
            world.marks["fenced"] += 1
            if world.acknowledged >= ACKNOWLEDGED_MIN and world.choose("give up", 3) == 0:
                return
            epoch = world.fresh_epoch()


async def until_answered(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do ``work`` again until it is not given up for want of an answer."""
    for _ in range(TRIES_MAX):
        try:
            return await work()
        except UNANSWERED:
            continue
    raise AssertionError(f"{work} was tried {TRIES_MAX} times")


def too_old(error: InvalidUsage) -> bool:
    """Tell whether an append was refused because its parts were begun so long ago that they may have been swept."""
    return "so long ago" in str(error)


def how_many(world: World, many: Sequence[int]) -> int:
    """Return how many things a user has to get done."""
    return world.one_of("task", many)


def at(frontier: Frontier) -> int:
    """Return the time of a frontier that is not empty."""
    assert frontier.at is not None, "no shard of this world is ever closed"
    return frontier.at
