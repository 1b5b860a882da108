"""A changed project is prepared beside the running one and takes over at one time; either may die at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.cli.conftest import COMMAND, Place

pytestmark = [pytest.mark.kill, pytest.mark.time_limit(600)]

BEFORE = "CREATE MATERIALIZED VIEW sums AS SELECT counter % 7 AS k, count(*) AS n, sum(counter) AS s FROM c GROUP BY 1"
AFTER = BEFORE.replace("sum(counter)", "sum(2 * counter)")
ABOVE = "CREATE MATERIALIZED VIEW above AS SELECT k, s FROM sums WHERE n > 1"
SAME = "SELECT count(*) AS n FROM sums x JOIN above y ON x.k = y.k WHERE x.s <> y.s"

TIMES = "SELECT CAST((SELECT sum(s) FROM sums) / (SELECT sum(counter) FROM c) AS INT) AS n"

PATIENCE_S = 180.0


def project(root: Path, location: Path, view: str) -> Path:
    """Write a project over ``location``, and return where."""
    files = {
        "strandline.yml": f"location: {location}\ndeployment: shop\ntick_ms: 200\nspark:\n  spark.master: local[1]\n",
        "sources/c.sql": "CREATE SOURCE c (counter BIGINT) FROM counter (every = '10ms')",
        "views/sums.sql": view,
        "views/above.sql": ABOVE,
        "materializations/out.sql": (
            f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{location.parent / 'r.duckdb'}') AS sums KEY (k)"
        ),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


class Run:
    """A process of the command line."""

    def __init__(self, root: Path, *arguments: str) -> None:
        command = [*COMMAND, "run", "--json", *arguments, "--project", str(root)]
        self.said = root / f"log-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self.said.open("w"), text=True, start_new_session=True
        )

    def until(self, word: str, seconds: float = PATIENCE_S) -> None:
        """Wait until it has said something."""
        for _ in range(int(seconds * 10)):
            if word in self.said.read_text():
                return
            assert self.process.poll() is None, self.said.read_text()
            threading.Event().wait(0.1)
        raise AssertionError(f"{word!r} was not said within {seconds} s: {self.said.read_text()}")

    def kill(self, how: int = signal.SIGKILL) -> int:
        """End it, with its JVM."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def runs():
    """Start processes; whatever still runs at the end is killed."""
    started: list[Run] = []

    def start(root: Path, *arguments: str) -> Run:
        started.append(Run(root, *arguments))
        return started[-1]

    yield start
    for run in started:
        run.kill()


def until(asking: Place, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the status is such, and return it."""
    for _ in range(int(PATIENCE_S * 5)):
        status = asking.run("status", "--json").documents[0]
        if holds(status):
            return status
        threading.Event().wait(0.2)
    raise AssertionError((status["next"], status["problems"]))


def ready(status: dict[str, Any]) -> bool:
    """Whether the next version has caught up."""
    return bool((status["next"] or {}).get("ready"))


def promoted(status: dict[str, Any]) -> bool:
    """Whether no version waits any longer, and all goes on."""
    return (status["next"], status["problems"]) == (None, {})


def test_a_changed_view_takes_over_under_load_and_the_version_before_ends(tmp_path, runs, spark, capsys) -> None:
    """Damage: a deployment is an outage, or readers see both versions, or neither, or the endpoint has both."""
    location = tmp_path / "data"
    one, two = project(tmp_path / "one", location, BEFORE), project(tmp_path / "two", location, AFTER)
    asking = Place(two, spark, capsys)
    first = runs(one)
    first.until("event=tick")
    nothing = asking.run("promote")
    assert (nothing.status, "no next version is prepared" in nothing.err) == (1, True), nothing.err

    killed = runs(two, "--read-only")
    killed.until("preparing")
    killed.kill()
    second = runs(two, "--read-only")
    second.until("preparing")
    until(asking, lambda status: ready(status) and status["problems"] == {})
    assert first.process.poll() is None

    done = asking.run("promote", "--json", "--timeout", str(PATIENCE_S))
    assert done.status == 0, done.err
    second.until("event=promoted")
    assert first.process.wait(PATIENCE_S) == 4
    assert "fenced" in first.said.read_text()
    until(asking, promoted)
    assert asking.run("query", "--json", SAME).documents[0]["rows"] == [{"n": 0}]
    assert second.kill(signal.SIGTERM) == 0
    for name in ("sums", "above", "out"):
        assert asking.run("verify", name).status == 0, name
    assert asking.run("run", "--once").status == 0  # an endpoint lives by itself: it may have been a transaction behind
    with duckdb.connect(str(tmp_path / "r.duckdb"), read_only=True) as connection:
        copied = connection.sql("SELECT sum(s) FROM sums").fetchall()
    held = asking.run("query", "--json", "SELECT sum(s) AS s FROM sums").documents[0]["rows"][0]["s"]
    assert copied == [(int(held),)]
    assert Place(one, spark, capsys).run("run", "--once").status == 1, "the version before came back"


def test_the_version_before_is_killed_while_it_is_replaced_and_the_new_one_once_it_has_said_so(
    tmp_path, runs, spark, capsys
) -> None:
    """Damage: a crash at the wrong moment leaves half a version, two histories, or a time of which nothing is known."""
    location = tmp_path / "data"
    one, two = project(tmp_path / "one", location, BEFORE), project(tmp_path / "two", location, AFTER)
    asking = Place(two, spark, capsys)
    first = runs(one)
    first.until("event=tick")
    second = runs(two, "--read-only")
    second.until("preparing")
    until(asking, ready)

    def kill_the_first() -> None:
        second.until("event=promoting")
        first.kill()

    killing = threading.Thread(target=kill_the_first)  # noqa: TID251 - the test waits for the other process meanwhile
    killing.start()
    done = asking.run("promote", "--json", "--timeout", str(PATIENCE_S))
    killing.join()
    assert done.status == 0, done.err
    second.until("event=promoted")
    second.kill()
    assert asking.run("status", "--json").documents[0]["next"] is None
    again = asking.run("promote")
    assert (again.status, "no next version is prepared" in again.err) == (1, True), again.err

    third = runs(two)
    third.until("event=tick")
    status = until(asking, promoted)
    views = status["collections"]
    since, upper = views["sums"]["since"], min(views[name]["upper"] for name in ("sums", "c"))
    times = range(upper - 1, since - 1, -max(1, (upper - since) // 8))
    found = [asking.run("query", "--json", "--as-of", str(time), TIMES).documents[0]["rows"][0]["n"] for time in times]
    assert sorted({*found}) == [1, 2], "readers see the version before, then the new one"
    assert found == sorted(found, reverse=True), "and no other between"
    assert third.kill(signal.SIGTERM) == 0
    for name in ("sums", "above", "out"):
        assert asking.run("verify", name).status == 0, name
