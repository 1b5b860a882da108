"""How users of the simulated world persevere: how often they try, how much they have to do, under which epoch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from strandline.errors import Determinate, FencedError, Indeterminate, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from worlds.persist import ACKNOWLEDGED_MIN, World

TRIES_MAX: Final = 200
"""How often one thing is tried: never reached by what makes progress."""
UNANSWERED: Final = (Indeterminate, Determinate, Unavailable)

APPENDS: Final = (2, 4, 6)
COMMITS: Final = (2, 3)
LOOKS: Final = (2, 3)
"""How many things a user has to do, by how much each of them takes; which of these is part of the seed."""
FENCED_MAX: Final = 12
"""How often a user is fenced before it leaves the others in peace: two whose opening takes long fence each other."""
PARTNERS: Final = {"w2": "w1", "l2": "l1", "c2": "c1", "p1": "c1"}
"""The partner in whose process a user may live."""
IDLE_S: Final = (0, 0.02, 2, 1_000)
"""How long an idle user pauses: up to longer than any lease."""

DAYS_S: Final = (2, 5_000, 50_000, 100_000)
"""How long a sleeping user sleeps: up to longer than leaked parts are kept."""

Work: TypeAlias = Callable[[World, PersistClient, str, int], Coroutine[Any, Any, None]]


async def under_epochs(work: Work, world: World, name: str) -> None:
    """Do ``work`` under an epoch; when fenced, stop, or do it under a newer one.

    A user with a partner may live in its process, and under its epoch: then they share their handles.
    """
    partner = PARTNERS.get(name, "")
    if partner in world.epochs and world.choose("partner", 2):
        client, epoch = world.processes[partner], world.epochs[partner]
    else:
        client, epoch = world.client(name), world.epoch()
    world.epochs[name] = epoch
    fenced = 0
    while True:  # two users that fence each other do not do so for ever: the first that gives up ends it
        try:
            await until_answered(lambda epoch=epoch: work(world, client, name, epoch))
            return
        except FencedError:
            world.marks["fenced"] += 1
            if world.acknowledged >= ACKNOWLEDGED_MIN and world.choose("give up", 3) == 0:
                return
            fenced += 1
            if fenced > FENCED_MAX and not world.marks["gave up"]:
                world.marks["gave up"] += 1
                return
            epoch = world.epochs[name] = world.fresh_epoch()


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
    return "too long ago" in str(error)


def too_late(error: InvalidUsage) -> bool:
    """Tell whether a commit was refused because its token was made so long ago that it may be forgotten."""
    return "comes too late" in str(error)


def how_many(world: World, many: Sequence[int]) -> int:
    """Return how many things a user has to get done."""
    return world.one_of("task", many)


def at(frontier: Frontier) -> int:
    """Return the time of a frontier that is not empty."""
    assert frontier.at is not None, "no shard of this world is ever closed"
    return frontier.at
