"""What the page is given: health in one word, figures, errors, and an hour of history."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import pytest

from console_shown import BEGUN_MS, Console, Hands, Shown, an_hour, item, shown
from strandline.console.health import health, reasons, reasons_of
from strandline.console.watch import COUNT_EVERY_MS, ITEMS_MAX, LOOK_S, POINTS, History, Watch
from strandline.errors import Unavailable
from strandline.problem import Problem, Stopped, Way, cases_of, joined, told
from strandline.serving.traffic import Traffic

GONE = Problem(
    "gone",
    "file {file!r} is gone",
    Stopped.SOURCE,
    (
        Way("go on without it", "strandline source skip {item:shell} --file {file:shell} --apply"),
        Way("let files go once they are durable", "ALTER SOURCE {item:sql} SET (retain 'false')"),
    ),
)
UNFILLED = Problem("unfilled", "it is gone", Stopped.ENDPOINT, (Way("fill it", "strandline backfill {item} --apply"),))
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
    assert shown_errors["since_at"] == "2026-09-21T14:03:20Z"


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


def test_each_reason_stands_once_with_what_it_stops_and_the_ways_out(console: Console) -> None:
    """Damage: one database that is away is forty lines of red, and none of them says what to type."""
    items, away = console.env.items, "PostgreSQL (db:5432/shop) does not answer: connection refused"
    items["bank"]["problem"] = items["accounts"]["problem"] = away
    items["balances"] |= {"waiting": "it waits for 'accounts'", "lag": {"ms": 95_000}}
    items["balances_by_account"]["waiting"] = "it waits for its collection"
    items["dashboard"]["waiting"] = (
        "it waits for its schedule: its next transaction begins at 2026-09-21T15:00:00+00:00"
    )
    full = Problem("full", "the disk is full", Stopped.WRITES, (Way("make room", "strandline gc --apply"),))
    console.env.others["(merges)"] = full.said()
    console.watch.look()
    found = {each["why"]: each for each in console.json("/api/environment")["reasons"]}
    assert found[away]["items"] == ["bank", "accounts"]
    assert sorted(found[away]["stops"]) == ["balances", "balances_by_account", "payments"]
    commands = [each["command"] for each in found[away]["ways"]]
    assert commands == ["strandline source retry bank", "strandline source retry accounts"]
    assert "3 rows with errors: clicks[0]@17: it is no JSON" in found
    assert found["replica b at 10.0.0.2:7071: it does not answer"]["items"] == ["wide"]
    assert found["the disk is full"]["ways"] == [{"command": "strandline gc --apply", "does": "make room"}]
    told = [name for each in found.values() for name in each["items"]]
    assert len(told) == len(set(told))
    assert not {"balances", "balances_by_account"} & set(told), "they are behind because another stands still"
    assert "dashboard" in told, "it waits for noon, not for the database"
    shown_reasons = console.json("/api/item?name=accounts")["reasons"]
    assert [each["command"] for each in shown_reasons[0]["ways"]] == ["strandline source retry accounts"]
    assert console.json("/api/item?name=balances")["reasons"][0]["why"] == away


def test_an_instance_stops_its_items_once_no_replica_is_left(console: Console) -> None:
    """Damage: an operator starts a replica of which another has taken the work, and looks no further."""
    console.env.items["balances"]["lag"] = {"ms": 95_000}
    lost = "replica b at 10.0.0.2:7071: it does not answer"
    for obeys, stops in ((True, []), (False, ["balances"])):
        console.env.items["wide"]["replicas"]["a"]["obeys"] = obeys
        console.watch.look()
        found = {each["why"]: each for each in console.json("/api/environment")["reasons"]}
        assert found[lost]["stops"] == stops


@pytest.mark.parametrize(
    ("figures", "commands"),
    [
        (
            item("source", **told(GONE.said(file="a b", item="it"))),
            [
                "strandline source skip it --file 'a b' --apply",
                "ALTER SOURCE `it` SET (retain 'false')",
                "strandline source retry it",
            ],
        ),
        (
            item("materialization", **told(joined(["the store is slow", UNFILLED.said(item="it")]))),
            ["strandline backfill it --apply", "strandline sync it"],
        ),
        (item("view", errors=2, name="a b"), ["strandline query 'SELECT * FROM errors(`a b`)'"]),
        (item("source table", errors=2), ["strandline source skip it"]),
        (
            item(
                "instance", replicas={"a": {"address": "h:1", "obeys": False}, "b": {"address": "h:2", "obeys": True}}
            ),
            ["strandline replica --listen h:1"],
        ),
        (item("view", problem="it is damaged; or drop it: DROP VIEW it; ask `strandline fsck`"), []),
    ],
)
def test_the_ways_out_are_commands_that_can_be_typed(figures: dict[str, Any], commands: list[str]) -> None:
    """Damage: at night an operator looks for the name of the command, and for what it is to be given."""
    shown_item = {"name": "it", "errors": 0, "example": None, "health": "broken"} | figures
    (reason,) = reasons([shown_item], {})
    assert [each.command for each in reason.ways] == commands
    assert list(reasons_of(shown_item)) == [reason]


def test_a_command_stands_beside_a_reason_and_not_in_it() -> None:
    """Damage: thirty files that are gone are thirty reasons, since each names its own source."""
    ways = Way("create it"), Way("go on without it", "strandline source skip {item:shell} --apply")
    gone = Problem("gone", "the directory is gone", Stopped.SOURCE, ways)
    items = [{**item("source", **told(gone.said(item=n))), "name": n, "health": "broken", "errors": 0} for n in "ab"]
    found = reasons(items, {})
    assert [(each.why, each.items) for each in found] == [("the directory is gone; create it", ["a", "b"])]
    first = found[0].ways[0]
    assert (first.command, first.does) == ("strandline source skip a --apply", "go on without it")


@pytest.mark.parametrize(
    "file",
    ["a; b.csv", "a.csv; or run: strandline anew orders --apply", "z; to mend it: DROP SOURCE orders", "`SELECT 1`"],
)
def test_a_name_from_upstream_never_becomes_a_command(file: str) -> None:
    """Damage: who may name a file upstream puts a command under an operator's Copy button."""
    said = GONE.said(file=file, item="orders")
    for problem in (said, str(said)):
        shown_item = item("source", **told(problem)) | {"name": "orders", "health": "broken", "errors": 0}
        own = [each.command for (reason,) in [reasons([shown_item], {})] for each in reason.ways]
        declared = [way.command for case in cases_of(problem) for way in case.ways]
        assert own == [*declared, "strandline source retry orders"]
    assert shlex.split(said.cases[0].ways[0].command)[-2] == file


def test_a_statement_for_another_system_is_shown_as_one() -> None:
    """Damage: an operator runs in Strandline what belongs into the upstream's own shell, and it is refused."""
    way = Way("add it there", "ALTER PUBLICATION p ADD TABLE t", foreign=True)
    said = Problem("unpublished", "p does not have t", Stopped.TABLE, (way,)).said()
    shown_item = item("view", **told(said)) | {"name": "it", "health": "broken", "errors": 0}
    (first, *_) = reasons([shown_item], {})[0].ways
    assert (first.command, first.does) == (way.command, "in the upstream system: add it there")


def test_what_goes_on_by_itself_stands_once_and_has_no_commands() -> None:
    """Damage: forty views that are a minute behind hide the one problem that someone can end."""
    late = [{**item("view", lag={"ms": 12_000}), "name": f"v{n}", "health": "late", "errors": 0} for n in range(40)]
    broken = {**item("table", problem="it is damaged"), "name": "t", "health": "broken", "errors": 0}
    found = reasons([*late, broken], {})
    assert [(each.health, each.why, len(each.items)) for each in found] == [
        ("broken", "it is damaged", 1),
        ("late", "behind by more than 10 seconds", 40),
    ]
    assert found[1].ways == []


def test_the_queries_that_run_are_shown_with_the_command_that_cancels_each(console: Console) -> None:
    """Damage: who sees that the machine is busy must find another tool to learn with what."""
    told = {"who": "ada at 10.0.0.9", "since": BEGUN_MS - 65_000, "ms": 65_000, "stage": "computes"}
    console.env.asked = [{"number": 13, **told, "text": "SELECT count(*) FROM range(1000000) a"}]
    console.env.asked += [{"number": 14, **told, "text": "x" * 1_000_000}]
    before = [each["number"] for each in console.json("/api/environment")["queries"]]
    assert before == [12], "it answers from the last look"
    console.watch.look()
    first, long = console.json("/api/environment")["queries"]
    assert (first["who"], first["stage"], first["cancel"]) == ("ada at 10.0.0.9", "computes", "strandline cancel 13")
    assert first["since_at"] == "2026-09-21T14:12:15Z"
    assert first["text"] == "SELECT count(*) FROM range(1000000) a"
    assert len(long["text"]) < 3_000
    assert console.ask("/api/environment", method="POST")[0] == 405, "a page that anyone sees cancels nothing"


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


def test_a_notice_comes_with_the_command_that_acknowledges_it() -> None:
    """Damage: the console shows a notice for ever, and does not say how its reader ends that."""
    look = shown(Shown(Hands(), {"it's": item("table", notices=["a new column"]), "t": item("table")}))
    with look as console:
        console.watch.look()
        told, silent = console.json("/api/environment")["items"]
        assert told["acknowledge"][0]["command"] == shlex.join(["strandline", "acknowledge", "it's"])
        assert silent["acknowledge"] == []
