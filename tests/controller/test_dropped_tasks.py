"""DROP MATERIALIZATION fences whatever still runs it, before its table is given to another one: over the real core."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controller.asking.test_committing import Place

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.statements import Drop
from strandline.controller.location import catalog, dropped
from strandline.controller.location.items import Materialization
from strandline.errors import CorruptionError, FencedError, Unavailable
from strandline.instance.tasks import fence_task
from strandline.materialize.log import RecoveryLog
from strandline.materialize.splits import Splits

DROP = Drop("materialization", "out", if_exists=False)


def unheard(core: Core) -> Splits:
    """Return the task that runs in ``core``, which no DROP reaches from now on: as in a replica that is cut off."""
    deliveries = core.require_writing().instance._deliveries
    deliveries._loops.pop("out")
    return deliveries.tasks.pop("out")


async def again(place: Place, core: Core) -> None:
    """Create the materialization anew; its table is emptied, as drivers do with that of another task."""
    place.endpoint.tables.clear()
    await place.materialize(core)


async def _unanswered(log: str, epoch: int, client: Any) -> None:
    raise Unavailable("Consensus does not answer")


async def drop_what_runs_on(splits: int = 1) -> None:
    """Give the table of a dropped materialization to another one, while a task that has not heard of it runs on."""
    place = Place(splits=splits)
    core = await place.filled()
    for _ in range(4):
        await place.grown(core)
    late = unheard(core)
    await definitions.drop(core, DROP)
    assert core.catalog.ended == ()
    await again(place, core)
    await place.grown(core)
    rows, commits = place.endpoint.rows("o"), place.endpoint.commits
    for _ in range(2):
        with pytest.raises(FencedError):
            await late.advance()
    assert (place.endpoint.rows("o"), place.endpoint.commits) == (rows, commits)
    assert sorted(row["k"] for row in rows) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("splits", [1, 2])
def test_what_still_runs_a_dropped_materialization_writes_nothing_into_the_table_of_the_next(splits: int) -> None:
    """Damage: rows of a task that is gone stand in a table, and the task that has the table knows nothing of them."""
    asyncio.run(drop_what_runs_on(splits))


def test_logs_that_a_drop_leaves_are_noticed(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    """Damage: the test above passes, whatever a DROP leaves to the tasks that still run.

    It is a planted bug.  No history of the world `apart` shows it any longer, as the one that did takes another course.
    """
    monkeypatch.setattr(catalog, "_logs", lambda items: frozenset())
    with pytest.raises(CorruptionError):
        asyncio.run(drop_what_runs_on())
    record_property("FIGURE", "planted.dropped.logs_left law=M1 all pass")


def test_a_materialization_waits_until_dropped_ones_are_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: where a store does not answer for a moment, the table is given away too early."""

    async def body() -> None:
        place = Place()
        core = await place.filled()
        unheard(core)
        with monkeypatch.context() as patched:
            patched.setattr(dropped, "fence_task", _unanswered)
            await definitions.drop(core, DROP)
            await again(place, core)
            await place.insert(core)
            await core.tick()
            (log,) = core.catalog.ended
            problems = core.health.problems()
            assert "Consensus does not answer" in problems[log]
            assert log in problems["out"]
            assert place.endpoint.rows("o") == []
        await place.grown(core)
        assert core.catalog.ended == ()
        assert len(place.endpoint.rows("o")) == 3

    asyncio.run(body())


def test_the_next_environment_fences_it_if_the_first_one_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what a DROP had to do is forgotten with its process."""

    async def dies(log: str, epoch: int, client: Any) -> None:
        raise KeyboardInterrupt

    async def body() -> None:
        place = Place()
        core = await place.filled()
        late = unheard(core)
        with monkeypatch.context() as patched:
            patched.setattr(dropped, "fence_task", dies)
            with pytest.raises(KeyboardInterrupt):
                await definitions.drop(core, DROP)
        core = await place.open()
        assert core.catalog.ended == ()
        await place.insert(core)
        with pytest.raises(FencedError):
            await late.advance()

    asyncio.run(body())


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("dies", [False, True], ids=["at once", "a process died in between"])
def test_what_runs_a_fenced_task_as_it_was_writes_nothing(splits: int, *, dies: bool) -> None:
    """Damage: a split of a task writes on to a table that its task has let go."""

    async def body() -> None:
        place = Place(splits=splits)
        core = await place.filled()
        for _ in range(4):
            await place.grown(core)
        late = unheard(core)
        log, epoch = core.catalog.one("out", Materialization, "materialization").log, core.require_writing().epoch + 1
        if dies:  # before it came to the logs of splits
            await RecoveryLog(core.assembly.clock, core.assembly.ids, core.client.consensus, log, epoch).fence()
        await fence_task(log, epoch, core.client)
        rows, commits = place.endpoint.rows("o"), place.endpoint.commits
        await place.insert(core)
        await core.tick()
        for _ in range(2):
            with pytest.raises(FencedError):
                await late.advance()
        assert (place.endpoint.rows("o"), place.endpoint.commits) == (rows, commits)

    asyncio.run(body())
