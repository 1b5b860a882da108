"""`strandline bench serving`: nine clients at once, of which two are killed, one stalls and one sends garbage.

Three insert a row ten times a second each, two read a view of a thousand rows, one finds rows of it by key, and one
follows a view over what is inserted.  Meanwhile a source brings a hundred rows a second to another view.  Before and
after that the same environment ticks without clients, for the freshness of its views.  What was acknowledged is counted
at the end: a row that is missing, or there twice, is ``wrong``.

Programs that are not ours can be clients too (`Other`): the tests have some.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from strandline import client as programs
from strandline.bench.measured import percentile
from strandline.bench.served.client import KEYS
from strandline.client import Environment
from strandline.serving import Door, serve
from strandline.store.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS: Final = ("inserts", "inserts", "inserts", "asks", "asks", "peeks", "follows", "stalls", "garbage")
KILLED: Final = (1, 4)
"""Two of them, by their numbers: one that inserts, and one that reads."""
TICK_S: Final = 1.0
ENDING_S: Final = 180.0
ALONE_S: Final = 30.0
"""For at most so long it ticks without clients, before them and after them."""
Other: TypeAlias = Callable[[Sequence[str], int], Sequence[str]]
"""Returns the command of a client, given where it is served (the socket, and the address), and the client's number.

The client inserts ``(number, n)`` into ``rows``, and prints what `strandline.bench.served.client` prints.
"""


@dataclass
class _Client:
    """A client's process, and what it has said."""

    role: str
    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        """Take down what it says, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    @property
    def ms(self) -> list[float]:
        """How long each thing took."""
        return [each["ms"] for each in self.said if "ms" in each]


def measure_serving(
    session: SparkSession, location: Path, *, seconds: float, door: Door | None = None, others: Mapping[str, Other]
) -> dict[str, Any]:
    """Return the clients' times and the freshness of the views, in milliseconds, and how many rows are wrong.

    ``others``: further clients, by the names of their roles.  ``door``: an address for them, beside the socket.
    """
    with programs.open(f"file://{location}", spark=session) as env:
        env.execute("CREATE TABLE rows (client INT, n INT)")
        env.execute("CREATE TABLE numbers (k INT, v STRING)")
        env.execute("CREATE SOURCE feed (n BIGINT) FROM COUNTER (every = '10ms', keep = '1000')")
        env.execute("CREATE MATERIALIZED VIEW thousand AS SELECT k, upper(v) AS v FROM numbers")
        env.execute("CREATE MATERIALIZED VIEW per_client AS SELECT client, count(*) AS n FROM rows GROUP BY client")
        env.execute("CREATE MATERIALIZED VIEW fed AS SELECT n % 10 AS digit, sum(n) AS n FROM feed GROUP BY n % 10")
        env.execute("CREATE INDEX by_key ON thousand (k)")
        env.insert("numbers", [{"k": k, "v": f"value {k}"} for k in range(KEYS)])
        with _ticking(env, door) as (places, lags):
            alone = _alone(lags, seconds)
            lags.clear()
            clients = _clients(places, seconds, others)
            together, load = list(lags), os.getloadavg()[1]
            alone += _alone(lags, seconds)
        return _figures(env, clients, alone, together) | {"seconds": seconds, "load": round(load, 1)}


def _alone(lags: list[float], seconds: float) -> list[float]:
    """Return how old the views are while no client asks."""
    lags.clear()
    time.sleep(min(seconds / 4, ALONE_S))  # noqa: TID251 - it ticks meanwhile
    return list(lags)


@contextmanager
def _ticking(env: Environment, door: Door | None) -> Iterator[tuple[tuple[str, ...], list[float]]]:
    """Serve an environment and make ticks, once a second or as soon as a reader waits.

    Yield where, and how many milliseconds old the views were at most, before each tick.
    """
    stop, hurried, lags = threading.Event(), threading.Event(), list[float]()
    with serve(env, door, hurried.set) as serving:

        def run() -> None:
            before = env.tick(timeout=TICK_S)
            while not stop.is_set():
                now = env.tick(timeout=TICK_S)
                serving.desk.ticked()
                lags.append(SystemClock().now_ms() - before)  # so old was what readers saw until now
                before = now
                hurried.wait(TICK_S)
                hurried.clear()

        ticks = threading.Thread(target=run)  # noqa: TID251 - as the main thread of `run`
        ticks.start()
        try:
            yield serving.flight_sql, lags
        finally:
            stop.set()
            hurried.set()
            ticks.join()


def _clients(places: Sequence[str], seconds: float, others: Mapping[str, Other]) -> list[_Client]:
    """Let all clients do what they do for so long; kill `KILLED` of them in the middle."""
    clients, begun = [], time.monotonic()
    ours = [sys.executable, "-m", "strandline.bench.served.client"]
    commands: list[tuple[str, Sequence[str]]] = [
        (role, [*ours, role, places[0], str(number)]) for number, role in enumerate(CLIENTS)
    ]
    commands += [(role, other(places, number)) for number, (role, other) in enumerate(others.items(), len(CLIENTS))]
    for role, command in commands:
        process = subprocess.Popen([*command, str(seconds)], stdout=subprocess.PIPE, text=True)  # noqa: S603 - theirs
        clients.append(_Client(role, process))
    listening = [threading.Thread(target=each.listen) for each in clients]  # noqa: TID251 - pipes block
    for thread in listening:
        thread.start()
    time.sleep(max(0.0, seconds / 2 - (time.monotonic() - begun)))  # noqa: TID251 - they are at it
    for number in KILLED:
        clients[number].process.send_signal(signal.SIGKILL)
    for client, thread in zip(clients, listening, strict=True):
        client.process.wait(seconds + ENDING_S)
        thread.join()
    return clients


def _figures(env: Environment, clients: list[_Client], alone: list[float], together: list[float]) -> dict[str, Any]:
    rows, _ = env.answer("SELECT client, n, count(*) AS times FROM rows GROUP BY client, n")
    stored = {(row["client"], row["n"]): row["times"] for row in rows.to_pylist()}
    wrong, failed = sum(times - 1 for times in stored.values()), 0
    for number, client in enumerate(clients):
        killed = number in KILLED
        failed += client.process.returncode != (-signal.SIGKILL if killed else 0)
        acknowledged = {each["n"] for each in client.said if "n" in each}
        found = {n for who, n in stored if who == number}
        missing, more = len(acknowledged - found), len(found - acknowledged)
        wrong += missing + max(0, more - killed)  # one may have been on its way when it died
    times = {
        role: [ms for client in clients if client.role == role for ms in client.ms]
        for role in dict.fromkeys(client.role for client in clients)
    }
    return {
        "clients": len(clients),
        "killed": len(KILLED),
        "failed": failed,
        "wrong": wrong,
        "rows": len(stored),
        **{
            f"{role}_{name}_ms": round(percentile(each, percent), 1)
            for role, each in times.items()
            for name, percent in (("p50", 50), ("p99", 99))
            if each
        },
        "freshness_p50_ms": round(percentile(together, 50), 1),
        "freshness_p50_ms_alone": round(percentile(alone, 50), 1),
        "freshness_p99_ms": round(percentile(together, 99), 1),
        "freshness_p99_ms_alone": round(percentile(alone, 99), 1),
        "freshness_p99_ratio": round(percentile(together, 99) / percentile(alone, 99), 2),
    }
