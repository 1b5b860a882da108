"""`strandline bench queries`: small queries beside a runaway one, and how soon the processor is free once it is ended.

A small query needs a Spark job of its own.  It is asked again and again: alone, and then beside one runaway query after
the other, of a different shape each.  The runaway one is cancelled in the end, as `strandline cancel` does.  From then
on it counts how long it takes until no task of it is carried out any longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline import client as programs
from strandline.bench.measured import percentile, seconds
from strandline.client import Cancel, Environment
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDLESS: Final = "SELECT count(*) AS n FROM range(0, 1000000000000000, 1, 2) WHERE hash(id) = hash(id + 1)"
SHAPES: Final = {
    "scan": ENDLESS,
    "cross join": "SELECT count(*) AS n FROM range(1000000) a CROSS JOIN range(1000000) b WHERE hash(a.id, b.id) = 7",
    "cross join of three": "SELECT sum(a.id) AS n FROM range(100000) a, range(100000) b, range(100000) c",
    "one-sided join": "SELECT count(b.id) n FROM range(1000000) a LEFT JOIN range(1000000) b ON hash(a.id, b.id) = 7",
    "full join": "SELECT count(*) AS n FROM range(300000) a FULL JOIN range(300000) b ON a.id * b.id = 7",
    "join by few keys": "SELECT count(*) AS n FROM range(3000000) a JOIN range(3000000) b ON a.id % 3 = b.id % 3",
    "NOT IN": "SELECT count(*) n FROM range(900000) WHERE (id + 0.5, id / 3) NOT IN (SELECT id, id FROM range(900000))",
    "EXISTS": "SELECT count(*) n FROM range(900000) a WHERE EXISTS (SELECT 1 FROM range(900000) b WHERE a.id < -b.id)",
    "regex": "SELECT count(*) AS n FROM range(1000000000) WHERE repeat(CAST(id AS STRING), 9) RLIKE '(1+2+3*)+4$'",
    "long expression": f"SELECT sum({' + '.join(f'hash(id, {n}) % 7' for n in range(60))}) AS n FROM range(9999999999)",  # noqa: S608 - constants
    "window": "SELECT max(r) n FROM (SELECT rank() OVER (PARTITION BY id % 3 ORDER BY -id) r FROM range(1000000000))",
    "distinct": "SELECT count(DISTINCT hash(id)) AS n FROM range(100000000000)",
    "groups": "SELECT count(*) AS n FROM (SELECT hash(id), count(*) FROM range(100000000000) GROUP BY 1)",
    "explode": "SELECT count(*) AS n FROM range(100000000) LATERAL VIEW explode(sequence(0, 9999)) t AS x",
    "texts": "SELECT max(length(sha2(repeat(CAST(id AS STRING), 500), 512))) AS n FROM range(1000000000)",
    "union": f"SELECT sum(n) AS n FROM ({ENDLESS} UNION ALL {ENDLESS})",  # noqa: S608 - constants
    "subquery": f"SELECT id + ({ENDLESS}) AS n FROM range(3)",  # noqa: S608 - constants
    "everything": "SELECT id, id * 2 AS twice FROM range(0, 1000000000000, 1, 1000000)",
}
"""Queries that do not end in an hour, each of another shape."""
SMALL_ANSWERS: Final = tuple(shape for shape in SHAPES if shape != "everything")
"""Those whose answers a program can hold while they are computed."""
SMALL: Final = "SELECT city, count(*) AS n, max(amount) AS most FROM orders GROUP BY city ORDER BY city"
ROWS: Final = 1_000
WARM: Final = 20
"""So many answers are not counted, until Spark's own code is compiled."""
LOOK_S: Final = 0.02
PATIENCE_S: Final = 120.0
"""So long a runaway query has until its first task, and until its last one has ended."""


def tasks(session: SparkSession) -> int:
    """Return how many tasks are carried out here now, be they cancelled or not: each has a thread, named by it."""
    jvm: Any = session._jvm  # noqa: SLF001 - there is no other way to what the JVM says of itself
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    return sum(str(each.getName()).startswith("Executor task launch worker for task") for each in threads)


def measure_queries(session: SparkSession, place: Path, *, asks: int, shapes: Sequence[str]) -> dict[str, Any]:
    """Return how long small queries take alone, and beside a runaway query of each shape, and when that has gone."""
    with programs.open(f"file://{place}", spark=session) as env:
        env.execute("CREATE TABLE orders (city STRING, amount INT)")
        env.insert("orders", [{"city": f"city {n % 7}", "amount": n} for n in range(ROWS)])
        env.tick()
        _asked(env, WARM)
        found = []
        for shape in shapes:
            alone = _asked(env, asks)
            beside, free_s = _beside(session, env, SHAPES[shape], asks)
            alone += _asked(env, asks)
            found.append(
                {
                    "shape": shape,
                    "alone_p50_ms": round(percentile(alone, 50), 1),
                    "alone_p99_ms": round(percentile(alone, 99), 1),
                    "beside_p50_ms": round(percentile(beside, 50), 1),
                    "beside_p99_ms": round(percentile(beside, 99), 1),
                    "p99_ratio": round(percentile(beside, 99) / percentile(alone, 99), 2),
                    "free_s": round(free_s, 2),
                }
            )
    return {"asks": asks, "shapes": found, "load": round(os.getloadavg()[0], 1)}


def _asked(env: Environment, times: int) -> list[float]:
    """Ask the small query so many times, and return how many milliseconds each answer took."""
    return [seconds(lambda: env.answer(SMALL)) * 1000 for _ in range(times)]


def _beside(session: SparkSession, env: Environment, runaway: str, asks: int) -> tuple[list[float], float]:
    """Return how long small queries take beside ``runaway``, and after how many seconds its tasks have ended."""
    cancel, ended = Cancel(), list[object]()

    def run() -> None:
        try:
            ended.append(env.answer(runaway, cancel=cancel))
        except StrandlineError as error:
            ended.append(error)

    running = threading.Thread(target=run)  # noqa: TID251 - another program
    running.start()
    try:
        _until(lambda: tasks(session) > 0)
        took = _asked(env, asks)
        assert not ended, f"a runaway query has ended by itself: {runaway}"
        begun = time.perf_counter()
    finally:
        cancel()
        running.join()
    _until(lambda: not tasks(session))
    return took, time.perf_counter() - begun


def _until(holds: Callable[[], bool]) -> None:
    begun = time.perf_counter()
    while not holds():
        if time.perf_counter() - begun > PATIENCE_S:
            raise TimeoutError(f"a runaway query has neither begun nor ended within {PATIENCE_S:g} s")
        time.sleep(LOOK_S)  # noqa: TID251 - Spark goes on meanwhile
