"""A view is replaced while clients insert, query and subscribe: each reader sees the old query or the new, no other."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import adbc_driver_flightsql.dbapi as adbc
import pytest
from tests.serving.conftest import ticking

import strandline
from strandline.client import Progress, Updates
from strandline.serving import RemoteEnvironment, Serving

pytestmark = pytest.mark.spark

OLD: Final = "SELECT city, count(*) AS n FROM orders GROUP BY city"
NEW: Final = "SELECT city, 100 * count(*) AS n FROM orders GROUP BY city"
WIDER: Final = "SELECT city, 100 * count(*) AS n, min(id) AS first FROM orders GROUP BY city"
CITIES: Final = ("Delft", "Ghent", "Leiden")
BEFORE_S, AFTER_S, WITHIN_S = 2.0, 2.0, 120.0


class Clients:
    """Clients in threads of their own, which go on until `stop`; what one of them raised, `stop` raises."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor()
        self._going: list[Future[None]] = []

    def begin(self, turn: Callable[[RemoteEnvironment], object]) -> None:
        """Have a client of its own make ``turn`` again and again."""

        def go_on() -> None:
            with strandline.connect(self._address) as env:
                while not self._stopped.is_set():
                    turn(env)

        self._going.append(self._threads.submit(go_on))

    def wait(self, seconds: float) -> None:
        """Let them go on for a while."""
        self._stopped.wait(seconds)

    def until(self, fact: Callable[[], bool]) -> None:
        """Let them go on until it is so, or one of them ends: `stop` says why."""
        deadline = time.monotonic() + WITHIN_S
        while not fact() and not any(each.done() for each in self._going):
            assert time.monotonic() < deadline, "the clients get too few answers"
            self._stopped.wait(0.05)

    def stop(self) -> None:
        """End all of them."""
        self._stopped.set()
        for each in self._going:
            each.result(WITHIN_S)
        self._threads.shutdown()


def held(commits: dict[int, str], at: int) -> dict[str, int]:
    """Return how many orders each city has at a time, by what writers were told."""
    cities = [city for time, city in commits.items() if time <= at]
    return {city: cities.count(city) for city in {*cities}}


def judged(answers: list[tuple[int, str, dict[str, int]]], commits: dict[int, str], swap: int) -> None:
    """Insist that each answer is that of the old query before ``swap``, and of the new one from then on."""
    for at, name, found in answers:
        factor = 1 if at < swap else 100
        wanted = {city: factor * n for city, n in held(commits, at).items()}
        if name == "doubled":
            wanted = {city: 2 * n for city, n in wanted.items()}
        assert found == wanted, f"{name} at {at}, {at - swap} from the swap"


def replaced(env: RemoteEnvironment, query: str, clients: Clients) -> int:
    """Replace the view, and return the time that is reported for it: the first of the new query."""
    known = env.progress()["replaced"].get("sales")
    env.execute(f"CREATE OR REPLACE MATERIALIZED VIEW sales AS {query}")
    deadline = time.monotonic() + WITHIN_S
    while (swap := env.progress()["replaced"].get("sales")) == known:
        assert time.monotonic() < deadline, "it was not replaced"
        clients.wait(0.05)
    return int(swap) + 1


@pytest.mark.parametrize("query", [NEW, WIDER], ids=["same columns", "more columns"])
def test_each_reader_sees_the_old_query_or_the_new_one(query: str, spark: Any, tmp_path: Path) -> None:
    """Damage: while a view is replaced a reader gets rows of both queries, or none; or two views that disagree."""
    path, commits, answers = tmp_path / "out.db", dict[int, str](), list[tuple[int, str, dict[str, int]]]()
    standard, until = list[dict[str, int]](), list[int]()
    with strandline.open(f"file://{tmp_path / 'location'}", spark=spark) as env:
        env.execute("CREATE TABLE orders (id INT, city STRING)")
        env.execute(f"CREATE MATERIALIZED VIEW sales AS {OLD}")
        env.execute("CREATE MATERIALIZED VIEW doubled AS SELECT city, 2 * n AS n FROM sales")
        env.execute(f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{path}') AS doubled KEY (city)")
        env.tick()
        with ticking(env) as serving, strandline.connect(serving.flight_sql[0]) as operator:
            clients = Clients(serving.flight_sql[0])

            def insert(client: RemoteEnvironment) -> None:
                number = len(commits)
                city = CITIES[number % len(CITIES)]
                commits[client.insert("orders", [{"id": number, "city": city}])] = city

            def ask(client: RemoteEnvironment) -> None:
                for name in ("sales", "doubled"):
                    found, at = client.answer(f"SELECT city, n FROM {name}")
                    assert at is not None
                    answers.append((at, name, dict(zip(*found.to_pydict().values(), strict=True))))

            def ask_both(client: RemoteEnvironment) -> None:
                found, _ = client.answer("SELECT s.n AS n, d.n AS d FROM sales s JOIN doubled d ON s.city = d.city")
                assert all(row["d"] == 2 * row["n"] for row in found.to_pylist()), "two views of one time disagree"

            def ask_by_driver(_: RemoteEnvironment) -> None:
                standard.append(by_driver(serving))

            following = ThreadPoolExecutor(1)
            followed = following.submit(follow, serving.flight_sql[0], until)
            for turn in (insert, ask, ask_both, ask_by_driver):
                clients.begin(turn)
            clients.wait(BEFORE_S)
            clients.until(lambda: {name for _, name, _ in answers} == {"sales", "doubled"} and bool(standard))
            swap = replaced(operator, query, clients)
            clients.wait(AFTER_S)
            clients.until(lambda: {name for at, name, _ in answers if at >= swap} == {"sales", "doubled"})
            clients.stop()
            answer, at = operator.answer("SELECT city, n FROM doubled")
            assert at is not None
            until.append(at)
            last = {row["city"]: row["n"] for row in answer.to_pylist()}
            assert followed.result(WITHIN_S) == last
            following.shutdown()
        judged(answers, commits, swap)
        kept = {name for at, name, _ in answers if at < swap}, {name for at, name, _ in answers if at >= swap}
        assert kept == ({"sales", "doubled"}, {"sales", "doubled"}), "too few answers before or after"
        assert standard
        env.tick()
        with sqlite3.connect(path) as connection:
            assert dict(connection.execute("SELECT city, n FROM doubled")) == last
        assert all(env.verify(name).ok for name in ("sales", "doubled", "out"))


def test_an_answer_of_the_other_query_is_caught() -> None:
    """Damage: the test above passes whatever readers see."""
    commits = {1: "Delft", 7: "Delft"}
    judged([(4, "sales", {"Delft": 1}), (5, "doubled", {"Delft": 200}), (8, "sales", {"Delft": 200})], commits, 5)
    for at, name, n in ((4, "sales", 100), (5, "sales", 1), (5, "doubled", 2), (8, "sales", 100)):
        with pytest.raises(AssertionError, match=f"{name} at {at}"):
            judged([(at, name, {"Delft": n})], commits, 5)


def follow(address: str, until: list[int]) -> dict[str, int]:
    """Add up the changes of `doubled` until all at the time are there that ``until`` gets; return what that makes."""
    rows = Counter[tuple[str, int]]()
    with strandline.connect(address) as env, closing(env.subscribe("doubled")) as events:
        for event in events:
            match event:
                case Updates(changed):
                    for row in changed.to_pylist():
                        rows[row["city"], row["n"]] += row["__diff"]
                case Progress(upper) if until and (upper is None or upper > until[0]):
                    break
    assert set(rows.values()) <= {0, 1}
    return dict(row for row, times in rows.items() if times)


def by_driver(serving: Serving) -> dict[str, int]:
    """Ask as any tool does."""
    with adbc.connect(serving.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT city, n FROM sales")
        return dict(cursor.fetchall())
