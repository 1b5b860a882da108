"""A controller and replicas as processes: whichever is killed, the others go on, and all of them agree again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Place

from strandline.bench.instances.processes import CONTROLLER, Site

pytestmark = [pytest.mark.kill, pytest.mark.time_limit(600)]

TOKEN = "canary-4712"
VIEWS = {
    "sums": "SELECT counter % 7 AS k, count(*) AS n, sum(counter) AS s FROM c GROUP BY 1",
    "few": "SELECT counter AS k FROM c WHERE counter % 10 = 3",
    "ends": "SELECT DISTINCT counter % 100 AS k FROM c",
}
FRESH_S = 10.0
"""How old a view is at most, at some moment, that has caught up; a busy machine may make it older between two looks."""
PATIENCE_S = 120.0
GOES_ON = 5
"""How often all views must move on after one another before they are said to go on."""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    """Three views over a counter in an instance with two replicas, and a view above in the controller."""
    settings = {
        "location": "data",
        "deployment": "shop",
        "tick_ms": 200,
        "spark": {"spark.master": "local[1]"},
        "replica_token": "file:token",
    }
    with Site(tmp_path_factory.mktemp("replicas"), ("a", "b"), settings) as site:
        for name, query in VIEWS.items():
            site.write({f"views/{name}.sql": f"CREATE MATERIALIZED VIEW {name} IN INSTANCE x AS {query}"})
        site.write(
            {
                "token": TOKEN,
                "sources/c.sql": "CREATE SOURCE c (counter BIGINT) FROM counter (every = '10ms')",
                "views/above.sql": "CREATE MATERIALIZED VIEW above AS SELECT k, s FROM sums WHERE n > 1",
            }
        )
        yield site


@pytest.fixture
def asking(site, spark, capsys) -> Asking:
    """The command line on the site, on which everything runs and agrees."""
    site.complete()
    asking = Asking(site.root, spark, capsys)
    asking.until(all_is_well)
    return asking


class Asking(Place):
    """The command line in this process."""

    def status(self) -> dict[str, Any]:
        """What `strandline status --json` prints."""
        return self.run("status", "--json").documents[0]

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is such, and return it."""
        end = time.monotonic() + PATIENCE_S
        while not holds(found := self.status()):
            assert time.monotonic() < end, (found["instances"], found["problems"], uppers(found))
        return found

    def goes_on(self) -> None:
        """Wait until one replica runs everything, and every view has moved on, several times over."""
        status = self.status()
        for _ in range(GOES_ON):
            stood = uppers(status)
            status = self.until(lambda now, stood=stood: moved_on(now, stood) and unanswered(now) == [])

    def verify(self) -> None:
        """Fail unless every view is what its query says."""
        for name in (*VIEWS, "above"):
            done = self.run("verify", name)
            assert done.status == 0, (name, done)


def replicas(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """How the replicas are."""
    return status["instances"]["x"]["replicas"]


def uppers(status: dict[str, Any]) -> dict[str, int]:
    """How far the views are, in milliseconds."""
    return {name: status["collections"][name]["upper"] for name in (*VIEWS, "above")}


def moved_on(status: dict[str, Any], stood: dict[str, int]) -> bool:
    """Whether every view is further than it ``stood``."""
    return all(uppers(status)[name] > upper for name, upper in stood.items())


def fresh(status: dict[str, Any]) -> bool:
    """Whether every view has followed until now."""
    lags = [status["collections"][name]["lag"]["ms"] for name in (*VIEWS, "above")]
    return all(lag is not None and lag < FRESH_S * 1000 for lag in lags)


def all_is_well(status: dict[str, Any]) -> bool:
    """Whether both replicas obey, and nothing has a problem."""
    obey = [each.get("incarnation") and not each.get("problem") for each in replicas(status).values()]
    return all(obey) and len(obey) == 2 and fresh(status) and status["problems"] == {}


def unanswered(status: dict[str, Any]) -> list[str]:
    """The problems of items that no replica runs."""
    return [why for why in status["problems"].values() if "no replica" in why]


def incarnations(status: dict[str, Any]) -> dict[str, str]:
    """Which processes the replicas are."""
    return {name: each["incarnation"] for name, each in replicas(status).items()}


def counted(status: dict[str, Any], what: str) -> list[int]:
    """A counter of the sinks of the views that run in replicas."""
    return [status["collections"][name]["sink"][what] for name in VIEWS]


def test_each_controller_that_succeeds_a_killed_one_finds_everything_running(site, asking) -> None:
    """Damage: a crash of the controller computes every view anew, or leaves views that stand still."""
    before = asking.status()
    for kills in range(1, 4):
        site.kill(CONTROLLER)
        stood = uppers(asking.status())
        site.start(CONTROLLER).until("event=tick")
        after = asking.until(all_is_well)
        assert after["epoch"] == before["epoch"] + kills
        for each in replicas(after).values():
            assert each["reused"] == len(VIEWS)
            assert not each.keys() & {"replaced", "dropped", "created"}, each
        assert incarnations(after) == incarnations(before)
        assert moved_on(after, stood)
    asking.verify()


def test_either_of_two_replicas_may_go_and_come_back(site, asking) -> None:
    """Damage: views stand still while one replica is away, or one that came back only seems to run them."""
    before = asking.status()
    site.kill("a")
    asking.until(lambda status: "problem" in replicas(status)["a"])
    asking.goes_on()
    asking.verify()

    site.start("a").until("event=listening")
    back = asking.until(all_is_well)
    assert incarnations(back)["b"] == incarnations(before)["b"]
    assert incarnations(back)["a"] != incarnations(before)["a"]
    runs = replicas(back)["a"]
    assert runs.get("created", 0) + runs.get("reused", 0) == len(VIEWS)  # a connection may have been made once more
    assert site.processes["b"].end() == 0
    asking.until(lambda status: "problem" in replicas(status)["b"])
    asking.goes_on()
    asking.verify()


def test_a_replica_whose_spark_has_ended_ends(site, asking) -> None:
    """Damage: the system kills a JVM that takes too much memory, and its replica is connected, and does nothing."""
    replica = site.processes["b"]
    for child in Path(f"/proc/{replica.pid}/task/{replica.pid}/children").read_text().split():
        if "java" in Path(f"/proc/{child}/comm").read_text():
            os.kill(int(child), signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while replica.runs:
        assert time.monotonic() < end, replica.said
        time.sleep(0.2)  # noqa: TID251 - a process is waited for
    assert replica.end() == 1
    assert "Spark" in replica.said.splitlines()[-1]
    assert "Traceback" not in replica.said
    asking.until(lambda status: fresh(status) and "problem" in replicas(status)["b"])
    site.start("b").until("event=listening")
    asking.until(all_is_well)
    asking.verify()


def test_two_equal_replicas_undo_nothing_of_each_other(asking) -> None:
    """Damage: with a second replica every batch is written twice, or views are computed again and again."""
    before = asking.status()
    asking.goes_on()
    after = asking.status()
    for what in ("conflicts", "audits"):
        assert counted(after, what) == counted(before, what)


@pytest.mark.parametrize(
    ("listen", "location", "said"),
    [
        ("taken", "data", "cannot listen"),
        ("0.0.0.0:0", "data", "is not loopback, so listening there needs a token and TLS"),
        ("127.0.0.1:0", "elsewhere", "nothing was stored at location"),
        ("7071", "data", "'7071' is not an address: write HOST:PORT"),
    ],
)
def test_a_replica_that_may_not_listen_says_why_in_one_sentence(site, asking, listen, location, said) -> None:
    """Damage: strangers command a replica, or two share a port, or it serves a location that is misspelt."""
    other = Asking(site.root / "other", asking.spark, asking.caught)
    other.write({"strandline.yml": f"location: {site.root / location}\nreplica_token: file:{site.root / 'token'}\n"})
    refused = other.run("replica", "--listen", site.addresses["a"] if listen == "taken" else listen)
    assert (refused.status, refused.out) == (1, "")
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (site.root / "elsewhere").exists()


def test_a_token_is_needed_and_shown_nowhere(site, asking) -> None:
    """Damage: any user of the machine commands replicas, or finds what it takes in a log."""
    wrong = f"{TOKEN}-not"
    other = Asking(site.root / "wrong", asking.spark, asking.caught)
    other.write(
        {
            "strandline.yml": "location: data\nreplica_token: file:token\n"
            f"instances: {{x: {{replicas: {{a: '{site.addresses['a']}'}}}}}}\n",
            "token": wrong,
            "tables/t.sql": "CREATE TABLE t (k INT)",
            "views/v.sql": "CREATE MATERIALIZED VIEW v IN INSTANCE x AS SELECT k FROM t",
        }
    )
    refused = other.run("run", "--once")
    assert refused.status == 1
    assert "no replica of instance 'x' is connected" in refused.err
    said = [refused.out, refused.err, str(other.status()), str(asking.status()), other.run("status").out]
    other.write({"token": TOKEN})
    end = time.monotonic() + PATIENCE_S
    while "this replica is of location" not in (strange := other.run("run", "--once", "--json")).err:
        assert time.monotonic() < end, strange.err  # a replica that is held up for seconds is not heard
    said += [strange.out, strange.err, *(each.log.read_text() for each in site.processes.values())]
    asking.until(all_is_well)  # who may not command the replicas changes nothing
    assert not [text for text in said if TOKEN in text]
    stored = [path for place in (site.root, other.root) for path in (place / "data").rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if TOKEN.encode() in path.read_bytes()]
