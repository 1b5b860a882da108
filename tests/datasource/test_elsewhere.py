"""Two Spark applications of their own read a view while it changes: one on a cluster of processes, one by Connect."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.datasource.opened import Place, opened

pytestmark = [pytest.mark.spark, pytest.mark.time_limit(900)]

CHILD: Final = Path(__file__).parent / "reading_child.py"
CLUSTER: Final = "local-cluster[2,1,1024]"
ROUNDS: Final = 2


class Application:
    """An application that reads the view at the times that it is sent."""

    def __init__(self, master: str, location: str, log: Path) -> None:
        self.master = master
        self._log = log.open("wb")
        command = [sys.executable, str(CHILD), master, location, "v"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )

    def read(self, asked: int | str) -> list[list[Any]]:
        """Return the rows at a time, or what else `reading_child.py` answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{asked}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.master} ended: {Path(self._log.name).read_text()[-2000:]}"
        found: list[list[Any]] = json.loads(line)
        return found

    def close(self) -> None:
        """Let the application end."""
        self._process.communicate()
        self._log.close()


def test_two_applications_read_what_a_query_reads_while_views_change(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: executors on another machine cannot read at all, or read rows that the view never had at that time."""
    location = str(tmp_path / "data")
    with strandline.open(location, spark=spark) as env:
        env.execute("CREATE TABLE t (id INT, k INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS many, sum(id) AS total FROM t GROUP BY k")
        env.insert("t", [{"id": n, "k": n % 50} for n in range(2000)])
        env.tick()
        ended = threading.Event()

        def change() -> None:
            for n in itertools.count(2000):
                if ended.is_set():
                    return
                env.insert("t", [{"id": n + each, "k": (n + each) % 70} for each in range(3)])
                env.execute(f"DELETE FROM t WHERE id = {n - 2000}")
                env.tick()

        with ThreadPoolExecutor(3) as pool:
            changing = pool.submit(change)
            apart = [
                Application(master, location, tmp_path / f"{n}.log") for n, master in enumerate((CLUSTER, "connect"))
            ]
            try:
                answers: list[tuple[int, list[list[Any]]]] = []
                for _ in range(ROUNDS):
                    times = [(env.collection("v").upper or 0) - 1 for _ in apart]
                    answers += zip(times, pool.map(Application.read, apart, times), strict=True)
                for each in apart:
                    loaded = each.read("load")
                    before = env.collection("v").upper
                    while env.collection("v").upper == before:
                        assert not changing.done()
                    assert each.read("again") == loaded, "a frame is read at another time by each action"
            finally:
                ended.set()
                for each in apart:
                    each.close()
            changing.result()
        with opened(Place(location, None, ())) as door:

            async def leases() -> list[str]:
                return list((await door.plain((await door.catalog()).collection("v"))).state.leased)

            kept = door.run(leases())
        assert not [name for name in kept if name.startswith("spark-frame")], "an application that ended holds a frame"
        assert len({str(rows) for _, rows in answers}) >= ROUNDS, "nothing changed meanwhile"
        for time, rows in answers:
            assert rows == sorted(list(row) for row in env.query("SELECT * FROM v", as_of=time).collect())
