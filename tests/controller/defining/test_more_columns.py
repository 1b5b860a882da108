"""A table gets columns while it is used; what reads it goes on.  Over lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import promoted
import pyarrow as pa
import pytest
from promoted import Cut, Location, Process, held

from strandline.bench.environment import ITEMS, _define, _items, over_lists
from strandline.controller.core import Core
from strandline.controller.defining import altering
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Table, View
from strandline.errors import DefinitionError
from strandline.instance.tables import Change
from strandline.persist.fsck import check_location
from strandline.testing.simulation.kernel import run_sync

BASE: Final = {
    "items": f"CREATE TABLE items ({ITEMS})",
    "every": "CREATE MATERIALIZED VIEW every AS SELECT * FROM items",
    "totals": "CREATE MATERIALIZED VIEW totals AS SELECT grp, count(*) AS n FROM items GROUP BY grp",
}
ADD: Final = "ALTER TABLE items ADD COLUMN note STRING"


def begun() -> tuple[Location, Process]:
    """Return a location whose table and views are in use."""
    location = Location()
    process = location.run(BASE)
    for _ in range(3):
        location.tick(process)
    return location, process


def execute(process: Process, text: str) -> None:
    """Run a definition, as `Environment.execute` does."""
    run_sync(process.core.settle())
    statement: Any = parse(text)
    run_sync(altering.alter(process.core, statement) if text.startswith("ALTER") else create(process.core, statement))


async def _change(core: Core, n: int) -> None:
    """Insert a row into the table, whose new columns are NULL."""
    table = core.table("items")
    given = _items([n])
    for column in table.schema.columns[len(given.column_names) :]:
        given = given.append_column(column.name, pa.nulls(1, pa.string()))
    inserted = await core.engine.local(given, table.schema, time=0, diff=1)
    await core.commit([Change(table, inserted, False, 1)], token=None)


@pytest.fixture(autouse=True)
def wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table be changed also once it has more columns."""
    monkeypatch.setattr(promoted, "_change", _change)


def rows(process: Process, name: str, time: int) -> Counter[tuple[Any, ...]]:
    """What a collection holds at a time."""
    return run_sync(held(process.core, name, time))


def test_a_new_column_is_null_in_what_is_there_and_can_be_read_at_earlier_times() -> None:
    """Damage: a new column costs a table its rows, or its history."""
    location, process = begun()
    before = rows(process, "items", location.times[-1])
    execute(process, ADD)
    assert rows(process, "items", location.times[-1]) == Counter({(*row, None): n for row, n in before.items()})
    now = location.tick(process)
    assert process.core.catalog.collection("items").schema.names == ("id", "grp", "amount", "note")
    assert {row[3] for row in rows(process, "items", now)} == {None}


def test_views_see_what_they_saw_and_nothing_is_computed_anew() -> None:
    """Damage: SELECT * changes its columns under its readers, or every view over the table is computed again."""
    location, process = begun()
    execute(process, ADD)
    now = location.tick(process)
    assert rows(process, "every", now) == Counter({row[:3]: n for row, n in rows(process, "items", now).items()})
    for name in ("every", "totals"):
        for run in process.core.require_writing().instance._views.dataflows.runs_of(name):
            assert run.sink.counters.audits == 0, "it was computed anew"
    location.end(process)
    fresh = location.open()
    now = location.tick(fresh)
    assert rows(fresh, "every", now) == Counter({row[:3]: n for row, n in rows(fresh, "items", now).items()})
    execute(fresh, "CREATE OR REPLACE MATERIALIZED VIEW every AS SELECT * FROM items")
    location.tick(fresh)
    now = location.tick(fresh)
    assert rows(fresh, "every", now) == rows(fresh, "items", now), "a new definition sees the new column"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ALTER TABLE items ADD COLUMN grp INT", "grp"),
        ("ALTER TABLE nothing ADD COLUMN x INT", "there is no table 'nothing'"),
        ("ALTER TABLE totals ADD COLUMN x INT", "'totals' is a view, not a table"),
        ("ALTER TABLE items ADD COLUMN", "a column and its type"),
        ("ALTER TABLE items RENAME TO other", "is read by every, totals"),
        ("ALTER TABLE items SET KEEP HISTORY FOR 'long'", "KEEP HISTORY FOR"),
    ],
)
def test_what_cannot_be_altered_changes_nothing(text: str, said: str) -> None:
    """Damage: a mistake in ALTER leaves a table that cannot be opened."""
    location, process = begun()
    before = process.core.catalog
    with pytest.raises(DefinitionError, match=said):
        execute(process, text)
    assert process.core.catalog.items == before.items
    location.tick(process)


def test_a_table_that_nothing_reads_gets_another_name_and_keeps_its_rows() -> None:
    """Damage: a renamed table is another one, without rows."""
    location, process = begun()
    execute(process, "CREATE TABLE drafts (id INT)")
    location.tick(process)
    shard = process.core.catalog.collection("drafts").shard
    execute(process, "ALTER TABLE drafts RENAME TO Sketches")
    execute(process, "ALTER TABLE sketches SET KEEP HISTORY FOR '2 hours'")
    location.tick(process)
    table = process.core.catalog.one("sketches", Table, "table")
    assert (table.name, table.shard, table.keep_history) == ("Sketches", shard, "2 hours")
    assert process.core.catalog.find("drafts") is None


def test_what_was_read_before_it_was_renamed_is_read_and_followed_by_its_new_name() -> None:
    """Damage: a snapshot is of another table that has the name of before; or an endpoint stands still for ever."""
    location, process = begun()
    execute(process, "CREATE TABLE drafts (id INT)")
    location.tick(process)
    for ask in (process.core.readers.of, process.core.readers.holding):
        run_sync(ask("drafts"))
    running = process.core.require_writing().instance
    (shard,) = [shard for shard, each in running._readers.items() if each.name == "drafts"]
    execute(process, "ALTER TABLE drafts RENAME TO sketches")
    location.tick(process)
    for ask in (process.core.readers.of, process.core.readers.holding):
        assert run_sync(ask("sketches")).name == "sketches"
    assert running._readers[shard].name == "sketches"


def test_no_table_is_renamed_to_what_the_errors_of_a_source_are_called() -> None:
    """Damage: a query of the errors reads a table of users."""
    core = run_sync(Core.open(over_lists().assembly, Config(), Mode.FULL))
    run_sync(_define(core))  # with a source of events
    run_sync(create(core, parse("CREATE TABLE drafts (id INT)")))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="the errors of source 'events' are read under it"):
        run_sync(altering.alter(core, parse("ALTER TABLE drafts RENAME TO events_errors")))  # type: ignore[arg-type]


def widened_with(cut: Cut) -> bool:
    """Add a column with a fault at one write, and look at what it leaves; return whether there was that write."""
    location, process = begun()
    steps: list[Callable[[], object]] = [lambda: execute(process, ADD)]
    steps += [lambda: location.tick(process, healthy=False)] * 2
    there = location.cut_off(process, cut, steps)
    fresh = location.open()
    location.tick(fresh)
    if "note" not in fresh.core.catalog.collection("items").schema.names:
        execute(fresh, ADD)
    now = location.tick(fresh)
    assert rows(fresh, "every", now) == Counter({row[:3]: n for row, n in rows(fresh, "items", now).items()})
    assert len(rows(fresh, "items", location.times[0])) > 0
    views = [item for item in fresh.core.catalog.items.values() if isinstance(item, View)]
    assert {view.name: dict(view.narrowed) for view in views} == {
        name: {"items": ("id", "grp", "amount")} for name in ("every", "totals")
    }
    assert run_sync(check_location(fresh.core.client, fresh.core.engine)).harmful == ()
    return there


@pytest.mark.parametrize("how", ["before", "after", "lost"])
def test_wherever_it_is_cut_off_the_table_opens_and_has_all_its_rows(how: str) -> None:
    """Damage: a crash in an ALTER leaves a table that no process can open."""
    at = 1
    while widened_with(Cut(at, how)):
        at += 1
    assert at > 5
