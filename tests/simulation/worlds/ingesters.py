"""The users of every world of one source: ingesters, those that take over, and what lets the remap forget."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from strandline.errors import FencedError
from strandline.frontier import Frontier, as_time
from strandline.sources.steps import Stalled
from worlds.ingested import REMAP, IngestedWorld
from worlds.tries import UNANSWERED

W = TypeVar("W", bound=IngestedWorld)

ROUNDS: Final = 10
HISTORY: Final = "history"
INGESTERS: Final = frozenset({"a", "b"})
"""What ingesters are called in a cast."""

Doing: TypeAlias = Callable[[W, str, int], Coroutine[Any, Any, None]]


async def ingest(world: IngestedWorld, name: str, epoch: int) -> None:
    """Open the source, and bind and step until it was done often enough; go along when a newer epoch begins."""
    while world.done[name] < ROUNDS:
        try:
            await _ingest(world, name, world.generation)
        except FencedError:
            world.marks["fenced"] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


async def stay(world: IngestedWorld, name: str, epoch: int) -> None:
    """Do the same under one epoch, until a newer one has taken over."""
    while world.done[name] < ROUNDS:
        try:
            await _ingest(world, name, epoch)
        except FencedError:
            world.marks["fenced"] += 1
            return
        except UNANSWERED:
            world.marks["unanswered"] += 1


async def _ingest(world: IngestedWorld, name: str, epoch: int) -> None:
    ingestion, mine = await world.open(world.process(), epoch)
    while world.done[name] < ROUNDS and mine.tables == world.commanded(epoch):
        ticked = await ingestion.tick(as_time(ingestion.bound) + world.choose("time", 3))
        world.marks["tick: stalled"] += isinstance(ticked, Stalled)
        for table in mine.tables:
            if world.choose("step", 4):
                outcome = await ingestion.catch_up(table)
                world.marks["step: stalled"] += isinstance(outcome, Stalled)
        world.counted(ingestion, mine)
        world.done[name] += 1


async def take_over(world: IngestedWorld, name: str, epoch: int) -> None:
    """Begin a newer epoch, and go along with it."""
    world.generation += 1
    await ingest(world, name, world.generation)


async def let_go(world: IngestedWorld, name: str, epoch: int) -> None:
    """Let the remap forget when things happened that are durable in all outputs, as an environment does."""
    while world.done[name] < ROUNDS:
        try:
            client = world.process()
            hold = await client.since(REMAP, HISTORY, 1)
            uppers = [0]
            for table in world.tables:
                reader = await client.reader(world.shards[table], world.schema, table)
                uppers.append(0 if reader is None else as_time(reader.state.upper))
            await hold.downgrade(Frontier(max(0, min(uppers[1:]) - 1)))
            world.done[name] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


def populate(world: W, cast: Mapping[str, Doing[W]]) -> None:
    """Let the users of ``cast`` begin."""
    world.ingesters = len(cast.keys() & INGESTERS)
    for name, do in cast.items():
        world.simulation.spawn(name, lambda _, do=do, name=name: do(world, name, 1))
