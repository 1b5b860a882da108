"""A view that stands still is replaced: at each time it is of one query, or it cannot be read then."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from promoted import Location, Process, held
from test_replacing import DOUBLED, FIRST, begun, execute, meant, replacing

from strandline.compute.step import StageRun
from strandline.errors import AsOfError
from strandline.frontier import Frontier
from strandline.testing.simulation.kernel import run_sync

STANDS: Final = 3
"""For so many ticks the view stands still before it is replaced."""
JOINED: Final = "SELECT grp, count(*) + 10 * max(more) AS n FROM items CROSS JOIN later GROUP BY grp"
"""A query over a table that is created while the view stands still."""


def standing(monkeypatch: pytest.MonkeyPatch) -> tuple[Location, Process]:
    """Return a location whose view `wide` fails from here on, by its present query."""
    location, process = begun()
    of = process.core.require_writing().instance._views.dataflows.runs_of("wide")[-1].sink.fingerprint
    begin = StageRun._begin

    async def failing(run: StageRun, known: Frontier) -> Any:
        if run.sink.fingerprint == of:
            raise ValueError("it cannot be computed")
        return await begin(run, known)

    monkeypatch.setattr(StageRun, "_begin", failing)
    for _ in range(STANDS):
        location.tick(process, healthy=False)
    return location, process


def test_a_view_that_stood_still_is_of_one_query_at_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: between where it stood and where the new query came, it is empty, and so is all that reads it."""
    location, process = standing(monkeypatch)
    stood = location.times[-STANDS]
    execute(process, replacing(DOUBLED))
    for _ in range(3):
        location.tick(process, healthy=False)
    for time in location.times:
        query = FIRST if time <= stood else DOUBLED
        for name in ("wide", "over", "all_of"):
            assert run_sync(held(process.core, name, time)) == meant(process.core, time, query), (name, time)
    assert location.left(process) == set()


def test_a_view_that_could_not_be_computed_at_a_time_cannot_be_read_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: it is said to be empty, or what it was long before, at times that no query is known for."""
    location, process = standing(monkeypatch)
    execute(process, "CREATE TABLE later (more INT) KEEP HISTORY FOR '1 second'")
    location.tick(process, healthy=False)
    execute(process, replacing(JOINED))
    for _ in range(3):
        location.tick(process, healthy=False)
    begins = process.core.catalog.items["wide"].begins
    assert location.times[-4] < begins <= location.times[-3]
    for name in ("wide", "over", "all_of"):
        for time in location.times[:-3]:
            with pytest.raises(AsOfError, match=f"'{name}' cannot be read at {time}: since {begins} it, or a view"):
                run_sync(held(process.core, name, time))
        for time in location.times[-3:]:
            assert run_sync(held(process.core, name, time)) == Counter()
    execute(process, "CREATE MATERIALIZED VIEW new AS SELECT n FROM all_of")
    now = location.tick(process)
    assert run_sync(held(process.core, "new", now)) == Counter()
    assert location.left(process) == set()
