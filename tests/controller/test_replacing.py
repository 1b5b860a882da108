"""A view is replaced while all goes on: readers see the old one or the new one, and what reads it follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from promoted import Cut, Location, Process, held

from strandline.bench.environment import ITEMS
from strandline.compute.step import StageRun
from strandline.controller import writing
from strandline.controller.asking.reads import latest
from strandline.controller.core import Core
from strandline.controller.defining.changing.replacing import drop
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location import dropped
from strandline.controller.location.items import View
from strandline.controller.writing import Writing
from strandline.errors import AsOfError, DefinitionError, StrandlineError
from strandline.frontier import Frontier
from strandline.persist.fsck import check_location
from strandline.testing.simulation.kernel import run_sync

BASE: Final = {
    "items": f"CREATE TABLE items ({ITEMS})",
    "wide": "CREATE MATERIALIZED VIEW wide AS SELECT grp, count(*) AS n FROM items GROUP BY grp",
    "over": "CREATE MATERIALIZED VIEW over AS SELECT grp, n FROM wide WHERE n > 0",
    "all_of": "CREATE MATERIALIZED VIEW all_of AS SELECT * FROM over",
}
DOUBLED: Final = "SELECT grp, 2 * count(*) AS n FROM items GROUP BY grp"
WIDER: Final = "SELECT grp, count(*) AS n, max(amount) AS top FROM items GROUP BY grp"


def replacing(query: str, name: str = "wide") -> str:
    """The statement that replaces a view."""
    return f"CREATE OR REPLACE MATERIALIZED VIEW {name} AS {query}"


def execute(process: Process, text: str) -> None:
    """Run a definition, as `Environment.execute` does."""
    run_sync(process.core.settle())
    statement: Any = parse(text)
    run_sync(drop(process.core, statement) if isinstance(statement, Drop) else create(process.core, statement))


def meant(core: Core, time: int, query: str) -> Counter[tuple[Any, ...]]:
    """What `wide` is to hold at a time by a query, worked out row by row."""
    groups: dict[int, list[int]] = {}
    for (_, grp, amount), count in run_sync(held(core, "items", time)).items():
        groups.setdefault(grp, []).extend([amount] * count)
    rows = {
        BASE["wide"].partition(" AS ")[2]: lambda g, a: (g, len(a)),
        DOUBLED: lambda g, a: (g, 2 * len(a)),
        WIDER: lambda g, a: (g, len(a), max(a)),
    }[query]
    return Counter(rows(g, amounts) for g, amounts in groups.items())


FIRST: Final = BASE["wide"].partition(" AS ")[2]


def begun() -> tuple[Location, Process]:
    """Return a location whose views are in use."""
    location = Location()
    process = location.run(BASE)
    for _ in range(4):
        location.tick(process)
    return location, process


def shards(process: Process) -> dict[str, str]:
    """The shard of each view."""
    return {name: item.shard for name, item in process.core.catalog.items.items() if isinstance(item, View)}


def test_a_view_with_the_same_columns_keeps_its_history_and_goes_on_from_what_was_prepared() -> None:
    """Damage: the past of a view is lost; or its new rows are computed twice; or readers see neither."""
    location, process = begun()
    before = shards(process)
    old = location.times[-1]
    execute(process, replacing(DOUBLED))
    assert run_sync(held(process.core, "wide", old)) == meant(process.core, old, FIRST)
    last = location.tick(process)
    assert shards(process) == before, "it takes its place in the first tick that finds it as far"
    new = location.tick(process)
    for time, query in ((old, FIRST), (last, DOUBLED), (new, DOUBLED)):
        assert run_sync(held(process.core, "wide", time)) == meant(process.core, time, query)
    (at,) = process.core.require_writing().replaced.values()
    assert old < at < last
    assert run_sync(held(process.core, "wide", at)) == meant(process.core, at, FIRST)
    run = process.core.require_writing().instance._views.dataflows.runs_of("wide")[-1]
    assert run.sink.counters.audits == 0, "it was computed anew"
    assert run_sync(held(process.core, "over", new)) == meant(process.core, new, DOUBLED)
    location.tick(process)
    assert [v.seed for v in process.core.catalog.items.values() if isinstance(v, View) and v.seed] == []
    assert location.left(process) == set()


def test_other_columns_come_with_all_views_that_read_them_at_one_time() -> None:
    """Damage: a view over a replaced one stands still, or mixes the old one's rows with the new one's."""
    location, process = begun()
    before = shards(process)
    execute(process, replacing(WIDER))
    location.tick(process)
    now = location.tick(process)
    assert run_sync(held(process.core, "wide", now)) == meant(process.core, now, WIDER)
    assert run_sync(held(process.core, "over", now)) == meant(process.core, now, FIRST)
    assert run_sync(held(process.core, "all_of", now)) == meant(process.core, now, FIRST)
    after = shards(process)
    assert {name for name in after if after[name] != before[name]} == {"wide"}
    location.tick(process)
    assert location.left(process) == set()


@pytest.mark.parametrize("query", [DOUBLED, WIDER])
def test_what_is_read_together_is_of_one_query_at_every_time(query: str) -> None:
    """Damage: a client that reads a view and one over it finds the new rows of one beside the old rows of the other."""
    location, process = begun()
    old = location.times[-1]
    execute(process, replacing(query))
    for _ in range(2):
        location.tick(process)
        handles = [run_sync(process.core.readers.of(name)) for name in ("wide", "over", "all_of")]
        time = run_sync(latest(process.core, handles))
        assert kind_at(process.core, time, query) == "new", "a tick brings a query that has caught up to its own time"
    uppers = {handle.state.upper.at or 0 for handle in handles}
    kinds = [kind_at(process.core, time, query) for time in range(old, min(uppers))[-40:]]
    assert kinds == sorted(kinds, reverse=True)
    for time in {old, *location.times}:
        kind_at(process.core, time, query)


def test_columns_that_pass_through_move_what_reads_them_too() -> None:
    """Damage: SELECT * over a replaced view keeps the old columns for ever."""
    location, process = begun()
    execute(process, replacing("SELECT * FROM wide", "over"))
    location.tick(process)
    location.tick(process)
    execute(process, replacing(WIDER))
    location.tick(process)
    now = location.tick(process)
    for name in ("wide", "over", "all_of"):
        assert run_sync(held(process.core, name, now)) == meant(process.core, now, WIDER)
    location.tick(process)
    assert location.left(process) == set()


def test_the_last_of_several_replacements_counts() -> None:
    """Damage: a mistaken replacement cannot be taken back, or one that waits is lost with another one."""
    location, process = begun()
    execute(process, replacing("SELECT grp, 3 * n AS n FROM wide", "over"))
    execute(process, replacing(WIDER))
    execute(process, replacing(DOUBLED))
    location.tick(process)
    now = location.tick(process)
    doubled = meant(process.core, now, DOUBLED)
    assert run_sync(held(process.core, "wide", now)) == doubled
    assert run_sync(held(process.core, "over", now)) == Counter(
        {(grp, 3 * n): count for (grp, n), count in doubled.items()}
    )
    execute(process, replacing(WIDER))
    execute(process, replacing(DOUBLED))
    assert [name for name in process.core.catalog.items if name.startswith("__next_")] == []
    assert run_sync(held(process.core, "wide", location.tick(process))) == meant(
        process.core, location.times[-1], DOUBLED
    )


def test_a_view_and_what_was_to_replace_it_are_dropped_together() -> None:
    """Damage: the next version of a view that is gone is computed for ever."""
    location, process = begun()
    execute(process, replacing("SELECT grp FROM over", "all_of"))
    execute(process, "DROP MATERIALIZED VIEW all_of")
    location.tick(process)
    assert sorted(process.core.catalog.items) == ["items", "over", "wide"]
    location.tick(process)
    assert location.left(process) == set()


def test_what_is_dropped_with_a_view_ends_before_its_shards_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `strandline run` ends and says that another environment has taken over, since it wrote to a closed shard.

    Where a view was replaced before, shards are closed beyond the epoch of the process itself.
    """
    _, process = begun()
    execute(process, replacing("SELECT grp, n + 1 AS n FROM over", "all_of"))
    assert "__next_all_of" in process.core.require_writing().instance._open
    open_then: list[set[str]] = []

    async def watched(*given: Any) -> Any:
        open_then.append(process.core.require_writing().instance._open - process.core.catalog.items.keys())
        return await dropped.close(*given)

    monkeypatch.setattr(writing, "close", watched)
    execute(process, "DROP MATERIALIZED VIEW all_of")
    assert open_then == [set()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (replacing("SELECT grp FROM items", "wide"), "'over' reads 'wide' and could not go on"),
        (replacing("SELECT grp, n FROM over", "wide"), "in a circle: 'wide' reads 'over' reads 'wide'"),
        (replacing("SELECT grp, n FROM wide", "wide"), "a view cannot read itself"),
        (replacing("SELECT nothing FROM items", "wide"), "nothing"),
        (replacing("SELECT 1 AS a", "items"), "there is a table 'items' already"),
        ("CREATE MATERIALIZED VIEW x AS SELECT * FROM __next_wide", "__next_wide"),
        ("CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS wide AS SELECT 1", "contradict each other"),
    ],
)
def test_what_cannot_replace_a_view_changes_nothing(text: str, said: str) -> None:
    """Damage: a view is half replaced, and what reads it stands still."""
    location, process = begun()
    execute(process, replacing(WIDER))
    before = process.core.catalog
    with pytest.raises(DefinitionError, match=said):
        execute(process, text)
    assert process.core.catalog.items == before.items
    location.tick(process)


def test_the_same_query_changes_nothing() -> None:
    """Damage: a deployment that applies the same files computes everything anew."""
    location, process = begun()
    before = process.core.catalog
    execute(process, replacing(f"{FIRST} -- as ever"))
    assert process.core.catalog.items == before.items
    location.tick(process)


def test_a_replacement_that_is_dropped_before_it_takes_its_place_never_does() -> None:
    """Damage: a replacement that was begun by mistake comes all the same."""
    location, process = begun()
    execute(process, replacing(DOUBLED))
    execute(process, "DROP MATERIALIZED VIEW __next_wide")
    location.tick(process)
    now = location.tick(process)
    assert run_sync(held(process.core, "wide", now)) == meant(process.core, now, FIRST)
    location.tick(process)
    assert location.left(process) == set()


def test_two_views_cannot_come_to_read_each_other() -> None:
    """Damage: each is fine by itself, and once both are in place no tick goes through and nothing can be dropped."""
    location, process = begun()
    execute(process, "CREATE MATERIALIZED VIEW a AS SELECT grp, amount FROM items")
    execute(process, "CREATE MATERIALIZED VIEW b AS SELECT grp, amount FROM items")
    execute(process, replacing("SELECT grp, amount + 1 AS amount FROM b", "a"))
    with pytest.raises(DefinitionError, match="in a circle: 'a' reads 'b' reads 'a'|in a circle: 'b' reads 'a'"):
        execute(process, replacing("SELECT grp, amount + 2 AS amount FROM a", "b"))
    for _ in range(3):
        location.tick(process)


def test_a_view_that_only_a_waiting_query_reads_is_not_dropped_under_it() -> None:
    """Damage: a DROP makes every tick fail, also of the next process."""
    location, process = begun()
    execute(process, replacing("SELECT grp, n + 1 AS m FROM over", "all_of"))
    execute(process, "CREATE MATERIALIZED VIEW side AS SELECT grp FROM items")
    execute(process, replacing("SELECT m FROM all_of", "side"))
    with pytest.raises(DefinitionError, match="is read by __next_side; drop that first"):
        execute(process, "DROP MATERIALIZED VIEW all_of")
    execute(process, "DROP MATERIALIZED VIEW __next_side")
    execute(process, "DROP MATERIALIZED VIEW all_of")
    location.tick(process)


@pytest.mark.parametrize("first", ["wide", "over"])
def test_a_view_and_what_reads_it_are_replaced_one_after_the_other(first: str) -> None:
    """Damage: the replacement of a reader takes that of what it reads back, without a word."""
    location, process = begun()
    texts = {"wide": replacing(WIDER), "over": replacing("SELECT grp, 7 * n AS n FROM wide", "over")}
    execute(process, texts.pop(first))
    execute(process, next(iter(texts.values())))
    location.tick(process)
    now = location.tick(process)
    wide = run_sync(held(process.core, "wide", now))
    assert wide == meant(process.core, now, WIDER)
    over = Counter({(grp, 7 * n): count for (grp, n, _), count in wide.items()})
    assert run_sync(held(process.core, "over", now)) == over
    assert run_sync(held(process.core, "all_of", now)) == over


def test_taking_one_replacement_back_leaves_the_others() -> None:
    """Damage: a correction of one view loses the changes of those that read it."""
    location, process = begun()
    execute(process, replacing("SELECT grp, 3 * n AS n FROM wide", "over"))
    execute(process, replacing(WIDER))
    execute(process, replacing(FIRST))
    assert [name for name in process.core.catalog.items if name.startswith("__next_")] == ["__next_over"]
    shard = process.core.catalog.one("__next_over", View, "view").shard
    execute(process, replacing("SELECT grp FROM over", "all_of"))
    assert process.core.catalog.one("__next_over", View, "view").shard == shard, "it goes on"
    location.tick(process)
    now = location.tick(process)
    first = meant(process.core, now, FIRST)
    over = Counter({(grp, 3 * n): count for (grp, n), count in first.items()})
    assert run_sync(held(process.core, "over", now)) == over


def test_a_waiting_query_is_held_against_what_it_reads_too() -> None:
    """Damage: a query that waits loses a column that it needs, and stands still for ever."""
    location, process = begun()
    execute(process, "CREATE MATERIALIZED VIEW side AS SELECT grp FROM items")
    execute(process, replacing("SELECT grp, n FROM all_of", "side"))
    with pytest.raises(DefinitionError, match="n"):
        execute(process, replacing("SELECT grp FROM over", "all_of"))
    location.tick(process)
    location.tick(process)


@pytest.mark.parametrize(
    "text",
    ["CREATE MATERIALIZED VIEW late AS SELECT * FROM wide", "CREATE INDEX late ON wide (n)"],
)
def test_what_is_created_over_a_view_with_other_columns_to_come_waits(text: str) -> None:
    """Damage: it is planned over columns that are about to go, and stands still once they are gone."""
    location, process = begun()
    execute(process, replacing(WIDER))
    with pytest.raises(DefinitionError, match="'wide' is being replaced by a query with other columns"):
        execute(process, text)
    location.tick(process)
    execute(process, text)
    location.tick(process)


def test_how_long_history_is_kept_is_said_of_both() -> None:
    """Damage: a setting that was made while a query waits is lost when it comes."""
    location, process = begun()
    execute(process, replacing(WIDER))
    execute(process, replacing(WIDER).replace(" AS ", " KEEP HISTORY FOR '1 day' AS ", 1))
    assert process.core.catalog.one("wide", View, "view").keep_history == "1 day"
    location.tick(process)
    assert process.core.catalog.one("wide", View, "view").keep_history == "1 day"


def test_a_view_gets_a_schedule_and_loses_it() -> None:
    """Damage: the new schedule is ignored; or the view cannot be read until its first refresh."""
    location, process = begun()
    execute(process, f"CREATE OR REPLACE MATERIALIZED VIEW all_of REFRESH EVERY '1 day', AT CREATION AS {FIRST}")
    location.tick(process)
    now = location.tick(process)
    view = process.core.catalog.one("all_of", View, "view")
    assert str(view.refresh) == "EVERY '86400 s', AT CREATION"
    assert view.refresh is not None
    assert view.refresh.created == location.times[-3]
    assert run_sync(held(process.core, "all_of", now)) == meant(process.core, location.times[-3], FIRST)
    execute(process, replacing(DOUBLED, "all_of"))
    location.tick(process)
    now = location.tick(process)
    assert run_sync(held(process.core, "all_of", now)) == meant(process.core, now, DOUBLED)
    location.tick(process)
    assert location.left(process) == set()


HOW: Final = ("before", "after", "lost")
"""At each write, one after the other, one of these: all three at each would say little more."""


def test_a_view_keeps_its_place_until_the_new_one_has_come_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: readers find a view empty, or at an earlier time, while the new query is still computed."""
    location, process = begun()
    begin = StageRun._begin

    async def held_up(run: StageRun, known: Frontier) -> Any:
        return None if run.name == "__next_wide" else await begin(run, known)

    monkeypatch.setattr(StageRun, "_begin", held_up)
    execute(process, replacing(WIDER))
    for _ in range(3):
        now = location.tick(process, healthy=False)
        assert run_sync(held(process.core, "wide", now)) == meant(process.core, now, FIRST)
    monkeypatch.undo()
    location.tick(process, healthy=False)
    now = location.tick(process)
    assert run_sync(held(process.core, "wide", now)) == meant(process.core, now, WIDER)


def test_what_waits_over_a_view_that_waits_follows_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what is to replace a view gets the changes of the view before, and shows their sums for ever."""
    location, process = begun()
    caught_up = Writing._caught_up

    async def never(self: Writing, names: object) -> bool:
        return False

    monkeypatch.setattr(Writing, "_caught_up", never)
    execute(process, "CREATE MATERIALIZED VIEW few AS SELECT grp, n FROM over")
    location.tick(process)
    execute(process, replacing("SELECT grp, 5 * n AS n, 1 AS one FROM wide", "over"))
    for _ in range(4):
        location.tick(process)
    monkeypatch.setattr(Writing, "_caught_up", caught_up)
    now = location.tick(process)
    over = run_sync(held(process.core, "over", now))
    assert run_sync(held(process.core, "few", now)) == Counter((grp, n) for grp, n, _ in over.elements())


def test_a_planted_mistake_is_seen_where_readers_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above would pass if a query took its place too early."""

    async def at_once(*_: object) -> bool:
        return True

    monkeypatch.setattr(Writing, "_caught_up", at_once)
    with pytest.raises((AssertionError, StrandlineError)):
        test_a_view_keeps_its_place_until_the_new_one_has_come_as_far(monkeypatch)


def test_state_over_a_view_is_not_taken_over_by_what_reads_the_new_one() -> None:
    """Damage: a count of the old view's rows is prepared for the new one, and computed anew once that is in place."""
    location, process = begun()
    counted = "SELECT n, 10 * c AS c FROM (SELECT n, count(*) AS c FROM wide GROUP BY n)"
    execute(process, f"CREATE MATERIALIZED VIEW counted AS {counted}")
    location.tick(process)
    execute(process, replacing(DOUBLED).replace(" AS ", " REFRESH EVERY '1 day', AT CREATION AS ", 1))
    location.tick(process)
    now = location.tick(process)
    counts = Counter(n for _, n in meant(process.core, location.times[-3], DOUBLED))
    assert run_sync(held(process.core, "counted", now)) == Counter({(n, 10 * c): 1 for n, c in counts.items()})
    runs = process.core.require_writing().instance._views.dataflows.runs_of("counted")
    assert [run.sink.counters.audits for run in runs] == [0, 0]


QUERIES: Final = {"same columns": DOUBLED, "others": WIDER}


def replaced_with(query: str, cut: Cut) -> bool:
    """Replace a view with a fault at one write, and look at what it leaves; return whether there was that write."""
    location, process = begun()
    since = len(location.times)
    steps: list[Callable[[], object]] = [lambda: execute(process, replacing(query))]
    steps += [lambda: location.tick(process, healthy=False)] * 3
    there = location.cut_off(process, cut, steps)
    fresh = location.open()
    for _ in range(2):
        location.tick(fresh)
    execute(fresh, replacing(query))
    for _ in range(3):
        location.tick(fresh)
    kinds = [kind_at(fresh.core, time, query) for time in location.times[since - 1 :]]
    assert kinds[0] == "old", kinds
    assert kinds[-1] == "new", kinds
    assert [*kinds] == sorted(kinds, reverse=True), f"readers see one and then the other: {kinds}"
    views = [item for item in fresh.core.catalog.items.values() if isinstance(item, View)]
    assert [view.name for view in views if view.seed or view.replaces] == []
    assert location.left(fresh) == set()
    assert run_sync(check_location(fresh.core.client, fresh.core.engine)).harmful == ()
    return there


def kind_at(core: Core, time: int, query: str) -> str:
    """Return which of the two queries the views answer at a time; fail if it is neither, or they differ.

    A view whose columns have changed cannot be read at the times of the query before.
    """
    over = run_sync(held(core, "over", time))
    assert run_sync(held(core, "all_of", time)) == over
    try:
        wide = run_sync(held(core, "wide", time))
    except AsOfError:
        assert over == meant(core, time, FIRST), "what reads a view is ahead of it"
        return "old"
    kind = next(name for name, each in (("old", FIRST), ("new", query)) if wide == meant(core, time, each))
    assert over == Counter({row[:2]: count for row, count in wide.items()}), "what reads a view differs from it"
    return kind


@pytest.mark.drawn(3)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("how", HOW)
def test_wherever_a_replacement_is_cut_off_readers_see_one_query_or_the_other(how: str, query: str) -> None:
    """Damage: a crash in a replacement leaves a view of two halves, or rows that nothing corrects."""
    at = 1 + HOW.index(how)
    while replaced_with(QUERIES[query], Cut(at, how)):
        at += len(HOW)
    assert at > 10
