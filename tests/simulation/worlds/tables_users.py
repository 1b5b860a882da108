"""The users of the world of sources with several outputs: the outside, beside the ingesters of `ingesters.py`.

Casts of them make histories by a seed (`play`); a script is performed with one fault at a time (`perform`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from strandline.frontier import as_time
from strandline.store.unreliable import Choose
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Fate, IoPoint
from worlds.ingesters import Doing, ingest, let_go, populate, stay, take_over
from worlds.tables import FIRST, LATER, PARTITIONS, TablesWorld
from worlds.tries import UNANSWERED

EVENTS: Final = 24
CALM_AFTER: Final = 600
RESTS_MS: Final = (0, 3, 10, 30)
"""How long the outside rests between two events: up to a few things that an ingester does."""


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
                world.command((*FIRST, LATER))
            case _:
                for _ in range(1 + world.choose("changes", 3)):
                    partition = PARTITIONS[world.choose("partition", len(PARTITIONS))]
                    table = [*world.now][world.choose("table", len(world.now))]
                    world.change(partition, table, announce=what > 4)
        world.done[name] += 1

    while world.done[name] < EVENTS:
        rest_ms = RESTS_MS[world.choose("rest", len(RESTS_MS))]
        await IoPoint("outside", (), happen, (Fate.DONE,), delay_ms=rest_ms)


CASTS: Final[tuple[Mapping[str, Doing[TablesWorld]], ...]] = (
    {"a": ingest, "o": outside},
    {"a": ingest, "o": outside, "l": let_go},
    {"a": ingest, "b": ingest, "o": outside},
    {"a": ingest, "b": ingest, "o": outside, "l": let_go},
    {"a": stay, "b": take_over, "o": outside, "l": let_go},
)


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
        world.command((*FIRST, LATER))
    for partition in STAGES[stage]:
        for table in world.now:
            world.change(partition, table)


def perform(choose: Choose, patience_max: int) -> None:
    """Play the script once.  Raises what it breaks."""
    world = TablesWorld(choose, patience=patience_max)
    populate(world, {"a": scripted, "l": let_go})
    world.run()
    assert world.done["a"] == len(STAGES)
