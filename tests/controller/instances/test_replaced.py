"""A replica that does not hear that a view got another query writes no rows of the query before among the new ones."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

import pytest
from tests.controller.instances.apart import held, replica_of, run, site

from strandline.bench.environment import VIEWS, _change
from strandline.controller import writing
from strandline.controller.location.items import View
from strandline.controller.writing import Writing
from strandline.errors import AsOfError, FencedError
from strandline.frontier import Frontier
from strandline.instance.running.views import Dataflows
from strandline.persist.client import PersistClient

DOUBLED: Final = VIEWS["totals"].replace("sum(amount)", "2 * sum(amount)")
assert VIEWS["totals"] != DOUBLED


async def _missed() -> None:
    async with site("a", "b") as at:
        await at.tick(2)
        late = replica_of(at, "a")
        shard = at.core.catalog.one("totals", View, "view").shard
        at.processes["a:1"].cut()
        unreachable = at.processes.pop("a:1")
        try:
            await at.execute(f"CREATE OR REPLACE MATERIALIZED VIEW totals IN INSTANCE x AS {DOUBLED}")
            times = [await at.tick() for _ in range(3)]
            view = at.core.catalog.one("totals", View, "view")
            assert (view.sql, view.shard) == (DOUBLED, shard), "the new query is in place, and the history goes on"
            await _change(at.core, at.n)
            times.append(await at.core.ingest())  # what it reads is there, and nothing else has stepped yet
            instance = late._instance
            assert instance is not None
            with suppress(FencedError):
                await instance.look(shared=True)
                await instance.maintain(Frontier(times[-1] + 1), None)
            times.append(await at.tick())
            told = []
            for time in times[2:]:
                sums: Counter[str] = Counter()
                for (_, grp, amount), count in (await held(at.core, "items", time)).items():
                    sums[grp] += count * amount
                rows = {grp: amount for grp, _, amount in await held(at.core, "totals", time)}
                told.append(rows == {grp: 2 * amount for grp, amount in sums.items() if grp in rows})
            assert all(told), f"at some of {times[2:]} it is the query before: {told}"
            assert at.core.health.problems() == {}
            await at.execute("DROP MATERIALIZED VIEW totals")
            await at.tick()
            assert at.core.catalog.dropped == (), "what was written beyond the environment's epoch is closed, too"
        finally:
            await unreachable.kill()


def test_a_replica_that_did_not_hear_of_it_is_fenced() -> None:
    """Damage: a replica that was cut off shows the rows of a query that is gone, at times after the new ones."""
    run(_missed())


def test_without_the_fence_it_would_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above would pass whatever is written.

    It is a planted bug: of the histories of the world `altered`, too few show it.
    """
    opened = Dataflows._open

    async def unfenced(self, stage, shard, epoch, *rest):
        return await opened(self, stage, shard, self._epoch, *rest)

    async def unsaid(_writing, _view):
        """Leave the shard as it is."""

    monkeypatch.setattr(Dataflows, "_open", unfenced)
    monkeypatch.setattr(Writing, "_fence", unsaid)
    with pytest.raises(AssertionError, match="it is the query before"):
        run(_missed())


NAMED: Final = "CREATE MATERIALIZED VIEW named IN INSTANCE x AS SELECT grp, amount FROM totals"


async def _moved_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a view get another query, and see that what reads it never says another thing than the view.

    A replica that did not hear of it moves both in one write, just when the view is fenced: it moves the reader alone.
    """
    async with site("a", "b") as at:
        await at.execute(NAMED)
        await at.tick(2)
        late = replica_of(at, "a")
        at.processes["a:1"].cut()
        unreachable = at.processes.pop("a:1")
        fence, succeed, moved = PersistClient.fence, Writing.succeed, []

        async def brought(time: int) -> None:
            assert late._instance is not None
            await late._instance.look(shared=True)
            await late._instance.maintain(Frontier(time + 1), None)

        async def succeeding(self: Writing) -> bool:
            if not moved:  # so that it has nothing new to write
                await brought((self.transactions.upper.at or 0) - 1)
            return await succeed(self)

        async def fenced(client: PersistClient, shard: str, epoch: int) -> None:
            await fence(client, shard, epoch)
            if not moved and shard == at.core.catalog.one("totals", View, "view").shard:
                moved.append(await at.core.ingest())
                with pytest.raises(FencedError):
                    await brought(moved[0])

        monkeypatch.setattr(PersistClient, "fence", fenced)
        monkeypatch.setattr(Writing, "succeed", succeeding)
        try:
            await at.execute(f"CREATE OR REPLACE MATERIALIZED VIEW totals IN INSTANCE x AS {DOUBLED}")
            times = [await at.tick() for _ in range(3)]
            assert moved, "the replica that did not hear of it has tried"
            assert at.core.health.problems() == {}
            wrong = []
            for time in sorted({*times, *range(moved[0] - 3, moved[0] + 1)}):
                with suppress(AsOfError):
                    wanted = Counter((grp, amount) for grp, _, amount in await held(at.core, "totals", time))
                    wrong += [time] if await held(at.core, "named", time) != wanted else []
            assert await held(at.core, "named", times[-1]), "it can be read again"
            assert not wrong, f"at {wrong} it says what the query before said"
        finally:
            await unreachable.kill()


def test_what_a_late_replica_moved_over_a_view_that_it_could_not_move_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage: a view shows the rows of a query that its input has no longer, at times that are complete."""
    run(_moved_along(monkeypatch))


def test_if_all_times_were_read_it_would_show_the_query_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above would pass whatever is read."""
    monkeypatch.setattr(writing, "beginning", lambda catalog, name, begins: catalog)
    with pytest.raises(AssertionError, match="what the query before said"):
        run(_moved_along(monkeypatch))
