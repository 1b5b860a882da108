"""The register of queries: who asks what, since when, and how it is ended."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from strandline.errors import InvalidUsage
from strandline.plane import (
    COMPUTES,
    HERE,
    WAITS,
    Queries,
    Query,
    asked_by,
    at_stage,
    one_by_one,
    present,
    until_stopped,
)
from strandline.testing.doubles import HandClock


def test_a_query_is_listed_from_when_it_is_asked_until_it_ends() -> None:
    """Damage: a query that runs is not to be found, or one that has ended is listed for ever."""
    clock, ended = HandClock(), list[str]()
    queries = Queries(clock)
    with asked_by("anna, process 7"), queries.asked("SELECT 1", lambda: ended.append("first")) as first:
        since = clock.now_ms()
        clock.now += 1_500
        with pytest.raises(ValueError, match="wrong"), queries.asked("SELECT 2", list) as inner:
            at_stage(COMPUTES)
            assert inner is first, "a call that a query makes is part of it"
            raise ValueError("wrong")
        told = {"number": 1, "who": "anna, process 7", "since": since, "ms": 1_500, "stage": COMPUTES}
        assert queries.told() == [{**told, "text": "SELECT 1"}]
    assert queries.told() == []
    with queries.asked("SELECT 3", list):
        assert [(each.number, each.who, each.stage) for each in queries.now()] == [(2, HERE, WAITS)]


def test_what_is_done_one_by_one_says_how_far_it_is() -> None:
    """Damage: a verification of an hour says for an hour that it goes on, and its user takes it for stuck."""
    queries = Queries(HandClock())
    with queries.asked("verify v", list):
        said = [(each, queries.told()[0]["stage"]) for each in one_by_one("compares table", ["a", "b"])]
    assert said == [("a", "compares table 1 of 2"), ("b", "compares table 2 of 2")]
    assert [*one_by_one("compares table", ["a"])] == ["a"], "it is no query"


def test_a_query_is_cancelled_by_its_number_alone() -> None:
    """Damage: the wrong query is cancelled, or the answer says that one was which there is not."""
    ended, queries, begun = list[str](), Queries(HandClock()), threading.Semaphore(0)

    def asked(name: str) -> None:
        with queries.asked(name, lambda: ended.append(name)):
            begun.acquire()

    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(asked, name) for name in ("a", "b")]
        while len(queries.now()) < len(calls):
            threading.Event().wait(0.01)
        (number,) = (each.number for each in queries.now() if each.text == "b")
        assert queries.cancel(number)
        assert not queries.cancel(number + 7)
        begun.release(2)
        for call in calls:
            call.result(60)
    assert ended == ["b"]
    assert not queries.cancel(number)


def test_a_change_is_stopped_inside_alone() -> None:
    """Damage: a commit is broken off in the middle, and its caller hears that nothing was changed."""
    queries, done = Queries(HandClock()), list[str]()

    async def change(query: Query, when: str) -> None:
        async with until_stopped():
            if when == "inside":
                await asyncio.to_thread(query.stop)
                await asyncio.Event().wait()
        if when == "after":
            await asyncio.to_thread(query.stop)
        done.append(when)

    for when in ("never", "inside", "before", "after"):
        with queries.asked("change", list) as query:
            if when == "before":
                query.stop()
            if when in {"inside", "before"}:
                with pytest.raises(InvalidUsage, match="the statement was cancelled; nothing was changed"):
                    asyncio.run(change(query, when))
            else:
                asyncio.run(change(query, when))
    assert done == ["never", "after"]


def test_what_a_query_begins_and_outlives_it_belongs_to_none() -> None:
    """Damage: a tick computes among the queries, and is cancelled with one that has ended."""
    queries = Queries(HandClock())

    with queries.asked("SELECT 1", list):
        begun = copy_context()
        assert begun.run(present) is not None
    assert begun.run(present) is None
    assert present() is None
