"""A view with a schedule holds at each time what it would hold at its last refresh if it had none, errors too."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest
from house import INPUTS, LAST, House, failures_of, history_of
from msgspec.structs import replace
from random_plans import views_of
from test_definite_errors import keep

from strandline.frontier import EMPTY, Every, Frontier, Refresh
from strandline.testing.simulation.kernel import run_sync


def schedule(chance: random.Random) -> Refresh:
    """Return a schedule whose refreshes lie among the times of a history, most of them."""
    many = chance.choice([0, 1, 1])
    everies = tuple(Every(chance.randint(1, 4), chance.choice([None, chance.randint(0, 3)])) for _ in range(many))
    ats = tuple(chance.randint(0, LAST + 2) for _ in range(chance.choice([0, 1, 2])))
    refresh = Refresh(everies, ats, chance.random() < 0.2, chance.randint(0, 3))
    return refresh if refresh.up(0) is not None else replace(refresh, at_creation=True)


def held(house: House, name: str, time: int) -> tuple[Counter[tuple[Any, ...]], Counter[str]]:
    """Return the rows and errors of a view at a time; a stage's name in errors, which tells the schedule, cut short."""
    rows, errors = house.at(name, time)
    return rows, Counter(re.sub(r"-[0-9a-f]{16}", "", error) for error in errors.elements())


def refreshed(seed: int) -> int:
    """Keep random views with and without a schedule, and compare them; return at how many times."""
    chance = random.Random(f"refresh {seed}")
    views, refresh = views_of(chance), schedule(chance)
    failures, forgiven = failures_of(seed), frozenset(name for name in INPUTS if chance.random() < 0.2)
    plain = House(views, failures=failures, forgiven=forgiven)
    timed = House(views, failures=failures, forgiven=forgiven, refresh=refresh)
    keep(plain, seed, chance, 1)
    keep(timed, seed, chance, chance.randint(1, 4))
    compared = 0
    for name, view in views.items():
        reader = timed.readers[name]
        assert reader is not None
        state = run_sync(reader.refresh())
        since = state.since.at or 0
        assert state.upper == refresh.frontier(LAST + 1), f"seed {seed}, {name}: {refresh}"
        assert refresh.up(since) in {since, None}, f"seed {seed}, {name} begins at {since}, no refresh of {refresh}"
        for time in range(LAST + 1):
            last = refresh.before(time + 1)
            if state.since <= Frontier(time):
                assert last is not None, f"seed {seed}: {name} can be read at {time}, before any refresh: {refresh}"
                wanted, found = held(plain, name, last), held(timed, name, time)
                assert found == wanted, f"seed {seed}, {name} at {time}, {refresh}: {found}, not {wanted}\n{view.plan}"
                compared += 1
    return compared


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 60, 10)], ids=str)
def test_a_view_holds_what_its_inputs_came_to_at_its_last_refresh(seeds: range) -> None:
    """Damage: a view shows a change before its time, or not at it, or rows of two times at once."""
    assert sum(map(refreshed, seeds)), "no view came to a refresh, so this shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(first, first + 100) for first in range(1000, 2000, 100)], ids=str)
def test_many_views_hold_what_their_inputs_came_to_at_their_last_refresh(seeds: range) -> None:
    """Damage: the same, where it takes more luck to find."""
    assert sum(map(refreshed, seeds))


def a_house(refresh: Refresh) -> House:
    """Return a house with one view, which changes at most of its times."""
    return House({"v": views_of(random.Random(3))["v0"]}, refresh=refresh)


def test_a_view_is_computed_before_its_first_refresh_and_cannot_be_read_then() -> None:
    """Damage: a large view is first computed when it should be there; or shows what was there before its time."""
    house = a_house(Refresh(ats=(6,), created=1))
    house.write(history_of(3), 0, 3)
    house.tick(3)
    run = house.runs[-1]
    held = run.sink.writer.state
    assert (held.upper, held.since, run.sink.desired) == (Frontier(6), Frontier(6), 3)
    assert sum(batch.rows for batch in held.batches), "it holds nothing yet, so this shows nothing"


def test_a_view_is_closed_after_its_last_refresh_and_keeps_nothing_of_what_it_reads() -> None:
    """Damage: a view that never changes again is stepped, and holds its inputs' history, for ever."""
    house = a_house(Refresh(ats=(2,), created=1))
    house.write(history_of(3), 0, 5)
    house.tick(5)
    run = house.runs[-1]
    assert (run.sink.writer.state.upper, run.needed, run.rests(Frontier(5))) == (EMPTY, EMPTY, True)
    house.open()
    house.write(history_of(3), 5, 8)
    house.tick(8)
    assert house.runs[-1].sink.counters.appends == 0
    assert house.at("v", 7) == house.at("v", 2)


def test_a_view_that_nothing_refreshes_is_not_written() -> None:
    """Damage: a view that is refreshed daily costs a write at each tick."""
    house = a_house(Refresh((Every(6, 0),), created=0))
    house.write(history_of(3), 0, 2)
    house.tick(2)
    appends = [run.sink.counters.appends for run in house.runs]
    for time in range(2, 6):
        house.write(history_of(3), time, time + 1)
        house.tick(time + 1)
    assert [run.sink.counters.appends for run in house.runs] == appends
    house.write(history_of(3), 6, 8)
    house.tick(8)
    assert house.runs[-1].sink.counters.appends == appends[-1] + 1


def test_what_another_writer_appended_is_withdrawn_at_the_next_refresh() -> None:
    """Damage: what another process wrote stays in a view that has a schedule."""
    house = a_house(Refresh((Every(3, 0),), created=0))
    house.write(history_of(3), 0, 2)
    house.tick(2)
    run_sync(house.overtake("v", 3, 5))
    house.write(history_of(3), 2, LAST + 1)
    house.open()
    house.tick(LAST + 1)
    plain = House(house.views)
    keep(plain, 3, random.Random(3), 1)
    assert house.at("v", 6) == house.at("v", LAST) == plain.at("v", 6) != (Counter(), Counter())


def test_what_another_writer_appended_before_the_first_refresh_takes_nothing_of_the_views_own_with_it() -> None:
    """Damage: a view is empty until its inputs change: a merge made its rows and the foreign ones one time."""
    house = a_house(Refresh((Every(3, 0),), created=1))
    house.write(history_of(3), 0, 2)
    house.tick(2)
    before = house.runs[-1].sink.writer.state
    assert before.since == before.upper == Frontier(3), "its rows can be told from later ones, so this shows nothing"
    for time in range(3, 11):
        run_sync(house.overtake("v", time, time + 1, [("foreign", time, time)]))
    merged = run_sync(house.runs[-1].sink.writer.refresh()).batches[0]
    assert before.upper < merged.upper, "the first batch was not merged, so this shows nothing"
    house.write({name: [] for name in INPUTS}, 2, 14)
    house.tick(14)
    plain = House(house.views)
    plain.write(history_of(3), 0, 2)
    plain.tick(2)
    assert house.at("v", 13) == plain.at("v", 1) != (Counter(), Counter())
