"""The users of the world of sources with several outputs: ingesters, the outside, and what lets the remap forget.

Casts of them make histories by a seed (`play`); a script is performed with one fault at a time (`perform`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from strandline.errors import FencedError
from strandline.frontier.antichain import Frontier, as_time
from strandline.sources.steps import Stalled
from strandline.store.unreliable import Choose
from strandline.testing.simulation.choices import Seeded
from strandline.testing.simulation.kernel import Fate, IoPoint
from strandline.testing.upstreams.list_tables import SCHEMA
from worlds.tables import LATER, PARTITIONS, REMAP, TablesWorld
from worlds.tries import UNANSWERED

ROUNDS: Final = 10
EVENTS: Final = 24
CALM_AFTER: Final = 600
RESTS_MS: Final = (0, 3, 10, 30)
"""How long the outside rests between two events: up to a few things that an ingester does."""
HISTORY: Final = "history"

Doing = Callable[[TablesWorld, str, int], Coroutine[Any, Any, None]]


async def ingest(world: TablesWorld, name: str, epoch: int) -> None:
    """Open the source, and bind and step until it was done often enough; go along when a newer epoch begins."""
    while world.done[name] < ROUNDS:
        try:
            await _ingest(world, name, world.generation)
        except FencedError:
            world.marks["fenced"] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


async def stay(world: TablesWorld, name: str, epoch: int) -> None:
    """Do the same under one epoch, until a newer one has taken over."""
    while world.done[name] < ROUNDS:
        try:
            await _ingest(world, name, epoch)
        except FencedError:
            world.marks["fenced"] += 1
            return
        except UNANSWERED:
            world.marks["unanswered"] += 1


async def _ingest(world: TablesWorld, name: str, epoch: int) -> None:
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


async def take_over(world: TablesWorld, name: str, epoch: int) -> None:
    """Begin a newer epoch, and go along with it."""
    world.generation += 1
    await ingest(world, name, world.generation)


async def outside(world: TablesWorld, name: str, epoch: int) -> None:
    """Let rows change, partitions come and be announced, connections break, and a table be added."""

    def happen() -> None:
        what = world.choose("event", 12)
        match what:
            case 0:
                world.upstream.connection += 1
            case 1:
                for partition in world.upstream.partitions:
                    world.upstream.announce(partition)
            case 2 if world.done[name] > EVENTS // 3 and LATER not in world.tables:
                world.add_output(under_newer_epoch=world.ingesters > 1)
            case _:
                for _ in range(1 + world.choose("changes", 3)):
                    partition = PARTITIONS[world.choose("partition", len(PARTITIONS))]
                    table = [*world.rows][world.choose("table", len(world.rows))]
                    world.change(partition, table, announce=what > 4)
        world.done[name] += 1

    while world.done[name] < EVENTS:
        rest_ms = RESTS_MS[world.choose("rest", len(RESTS_MS))]
        await IoPoint("outside", (), happen, (Fate.DONE,), delay_ms=rest_ms)


async def let_go(world: TablesWorld, name: str, epoch: int) -> None:
    """Let the remap forget when things happened that are durable in all outputs, as an environment does."""
    while world.done[name] < ROUNDS:
        try:
            client = world.process()
            hold = await client.since(REMAP, HISTORY, 1)
            uppers = [0]
            for table in world.tables:
                reader = await client.reader(table, SCHEMA, table)
                uppers.append(0 if reader is None else as_time(reader.state.upper))
            await hold.downgrade(Frontier(max(0, min(uppers[1:]) - 1)))
            world.done[name] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


CASTS: Final[tuple[Mapping[str, Doing], ...]] = (
    {"a": ingest, "o": outside},
    {"a": ingest, "o": outside, "l": let_go},
    {"a": ingest, "b": ingest, "o": outside},
    {"a": ingest, "b": ingest, "o": outside, "l": let_go},
    {"a": stay, "b": take_over, "o": outside, "l": let_go},
)
INGESTERS: Final = frozenset({"a", "b"})


def populate(world: TablesWorld, cast: Mapping[str, Doing]) -> None:
    """Let the users of ``cast`` begin."""
    world.ingesters = len(cast.keys() & INGESTERS)
    for name, do in cast.items():
        world.simulation.spawn(name, lambda _, do=do, name=name: do(world, name, 1))


def play(seed: int) -> TablesWorld:
    """Make the history of ``seed``, every other one per cast with records of keys.  Raises what it breaks."""
    again, cast = divmod(seed, len(CASTS))
    world = TablesWorld(Seeded(random.Random(seed)), keyed=again % 2 == 1, calm_after=CALM_AFTER)
    populate(world, CASTS[cast])
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world


# ---- one fault -------------------------------------------------------------------------------------------------------

STAGES: Final = (("p", "q"), ("q",), ("r", "p"), ("p",))
"""In which partitions something changes before each round of the script."""
THIRD: Final = 2
"""Before which of them a table is added."""


async def scripted(world: TablesWorld, name: str, epoch: int) -> None:
    """Do round after round, each time from where it is after a crash."""
    while world.done[name] < len(STAGES):
        try:
            ingestion, mine = await world.open(world.process(), epoch)
            while world.done[name] < len(STAGES) and mine.tables == world.tables:
                stage = world.done[name]
                await IoPoint("outside", (stage,), lambda stage=stage: _prepare(world, stage), (Fate.DONE,))
                if mine.tables == world.tables:
                    await ingestion.tick(as_time(ingestion.bound) + 1)
                    for table in mine.tables:
                        await ingestion.catch_up(table)
                    world.counted(ingestion, mine)
                    if ingestion.upper == ingestion.bound:
                        world.done[name] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


def _prepare(world: TablesWorld, stage: int) -> None:
    if world.marks["prepared"] > stage:
        return
    world.marks["prepared"] += 1
    if stage == THIRD:
        world.add_output(under_newer_epoch=False)
    for partition in STAGES[stage]:
        for table in world.rows:
            world.change(partition, table)


def perform(choose: Choose, patience_max: int) -> None:
    """Play the script once.  Raises what it breaks."""
    world = TablesWorld(choose, patience=patience_max)
    populate(world, {"a": scripted, "l": let_go})
    world.run()
    assert world.done["a"] == len(STAGES)
