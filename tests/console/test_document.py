"""What the page is given: health in one word, figures, errors, and an hour of history."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from console_shown import BEGUN_MS, Console, Hands, Shown, an_hour, item, shown
from strandline.console.document import health
from strandline.console.history import ITEMS_MAX, POINTS, History
from strandline.console.watch import COUNT_EVERY_MS, LOOK_S, Watch
from strandline.errors import Unavailable
from strandline.serving.traffic.counting import Traffic

FOLLOW = Watch.follow  # a console of a test looks by itself


@pytest.mark.parametrize(
    ("figures", "errors", "word"),
    [
        (item("table"), 0, "fresh"),
        (item("table", problem="the disk is full"), 0, "broken"),
        (item("source"), 3, "broken"),
        (item("instance", replicas={"a": {"address": "h:1", "obeys": False}}), 0, "broken"),
        (item("instance", replicas={"a": {"address": "h:1", "obeys": True}}), 0, "fresh"),
        (item("view", lag={"ms": 61_000}), 0, "stale"),
        (item("view", lag={"ms": 11_000}), 0, "late"),
        (item("view", lag={"ms": 9_000}), 0, "fresh"),
        (item("view", lag={"ms": 61_000}, refresh="EVERY '1 day'"), 0, "fresh"),
        (item("view", lag={"ms": None}, phase="hydrating"), 0, "beginning"),
        (item("view", waiting="it waits for 12:00"), 0, "waiting"),
        (item("materialization", waiting="it waits for the next hour", lag={"ms": 61_000}), 0, "waiting"),
        (item("connection"), 0, "fresh"),
    ],
)
def test_health_is_the_worst_that_applies(figures: dict[str, Any], errors: int, word: str) -> None:
    """Damage: a view that stands still is green on the screen at which an operator looks all day."""
    assert health(figures, errors, tick_ms=1000) == word


def test_an_environment_with_long_ticks_is_not_late_between_them() -> None:
    """Damage: everything is amber for ever where ticks come once a minute."""
    assert health(item("view", lag={"ms": 61_000}), 0, tick_ms=60_000) == "fresh"


def test_before_the_first_look_the_page_learns_that_there_is_none() -> None:
    """Damage: the page of a process that has just begun shows an error."""
    with shown(Shown(Hands())) as console:
        assert console.json("/api/environment") == {"ready": False, "items": []}
        assert console.ask("/metrics")[0] == 200
        console.watch.look()
        assert console.json("/api/environment")["ready"]


def test_rows_with_errors_are_no_rows(console: Console) -> None:
    """Damage: the console counts a broken record as a row that a query would return."""
    clicks = next(each for each in console.json("/api/environment")["items"] if each["name"] == "clicks")
    assert (clicks["rows"], clicks["errors"]) == (51_900, 3)
    shown_errors = console.json("/api/item?name=clicks")["errors"]
    assert shown_errors["told"] == ["clicks[0]@17: it is no JSON"]
    assert shown_errors["since_at"] == "2026-09-21T14:03:20+00:00"


def test_errors_are_counted_only_where_some_came_or_went(console: Console) -> None:
    """Damage: each look starts a Spark job for each collection that ever had an error."""
    for _ in range(3):
        console.watch.look()
    assert console.env.counted == ["clicks"]
    console.env.items["clicks"]["seen"] = "0/[4]"
    console.watch.look()
    assert console.env.counted == ["clicks"], "it was counted a moment ago"
    console.clock.ms += COUNT_EVERY_MS
    console.watch.look()
    assert console.env.counted == ["clicks", "clicks"]
    console.env.items["clicks"]["seen"] = None
    console.watch.look()
    assert console.json("/api/item?name=clicks")["errors"]["rows"] == 0


@pytest.mark.parametrize("failure", [Unavailable("the store does not answer"), KeyError("a fault of our own")])
def test_a_look_that_fails_leaves_what_was_seen(
    console: Console, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Damage: one failure of a store ends the console for good."""
    calls = itertools.count()

    class Stop:
        def is_set(self) -> bool:
            return next(calls) >= 2

        def wait(self, seconds: float) -> None:
            assert seconds == LOOK_S

    def failed(name: str) -> Any:
        raise failure

    env = console.env
    watch = Watch(env, env.clock, Traffic(env.clock))
    monkeypatch.setattr(env, "errors", failed)
    FOLLOW(watch, Stop())
    assert watch.latest is not None
    assert next(calls) == 3, "it went on to the next look"
    monkeypatch.setattr(env, "figures", lambda: failed(""))
    with pytest.raises(type(failure)):
        watch.look()
    assert watch.latest.figures["items"]


def test_an_hour_is_kept_and_no_more(console: Console) -> None:
    """Damage: a process that runs for a month keeps a month of figures in memory."""
    an_hour(console)
    an_hour(console)
    found = console.json("/api/item?name=sessions")
    assert len(found["times"]) == POINTS
    assert found["times"][-1] == BEGUN_MS
    assert set(found["series"]) == {"freshness", "rows", "bytes", "errors", "done", "step"}
    assert {len(values) for values in found["series"].values()} == {POINTS}
    own = console.json("/api/item?name=")
    assert set(own["series"]) == {"freshness", "tick", "statements"}


def test_a_thousand_items_have_a_bounded_history() -> None:
    """Damage: a large environment fills the memory of the process that writes it."""
    history = History()
    history.note(1, {f"v{number}": {"rows": 1.0} for number in range(2 * ITEMS_MAX)})
    assert sum(bool(history.of(f"v{number}")[1]) for number in range(2 * ITEMS_MAX)) == ITEMS_MAX


def test_an_item_that_is_not_there_is_not_found(console: Console) -> None:
    """Damage: the page shows the figures of an item that was dropped."""
    assert console.ask("/api/item?name=nothing")[0] == 404
    del console.env.items["sessions"]
    console.watch.look()
    assert console.ask("/api/item?name=sessions")[0] == 404


def test_an_environment_that_cannot_say_what_an_item_is_says_why(console: Console, monkeypatch: Any) -> None:
    """Damage: the page shows a traceback, with the place in our code."""

    def gone(name: str) -> Any:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(console.env, "described", gone)
    status, _, body = console.ask("/api/item?name=sessions")
    assert (status, body) == (503, '{"error":"the store does not answer"}')


def test_many_pages_cost_the_environment_one_look(console: Console, monkeypatch: Any) -> None:
    """Damage: ten open pages have the plan of a view made ten times every two seconds."""
    asked: list[str] = []
    known = console.env.described
    monkeypatch.setattr(console.env, "described", lambda name: asked.append(name) or known(name))
    monkeypatch.setattr(console.env, "figures", lambda: pytest.fail("a page made the environment look"))
    for _ in range(10):
        console.json("/api/item?name=sessions")
        console.json("/api/environment")
    assert asked == ["sessions"]
