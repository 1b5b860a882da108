"""A Spark application that follows a view is killed and started again: its files have each update once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.controller.retention import TICKS_BETWEEN
from strandline.datasource.opened import Place, opened

pytestmark = [pytest.mark.kill, pytest.mark.spark]

CHILD: Final = Path(__file__).parent / "streaming_child.py"
KILLS: Final = 1
"""Each costs a start of Spark; `tests/datasource/test_stream.py` kills at every point."""
WELL_S_MAX: Final = 270.0


class Following:
    """The application, and what it has done."""

    def __init__(self, location: str, directory: Path) -> None:
        self._command = [sys.executable, str(CHILD), location, "v", str(directory)]
        self._directory = directory
        self._log = directory / "log"

    def start(self, how: str) -> subprocess.Popen[bytes]:
        """Begin, or go on."""
        with self._log.open("ab") as log:
            return subprocess.Popen([*self._command, how], stdout=log, stderr=log, start_new_session=True)

    @property
    def batches(self) -> int:
        """How many batches were committed."""
        commits = self._directory / "checkpoint" / "commits"
        return sum(path.name.isdigit() for path in commits.iterdir()) if commits.is_dir() else 0

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-3000:]


def test_a_stream_that_is_killed_gives_each_update_once(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: after a crash of the driver, an application counts changes twice, or misses some."""
    chance = random.Random(4)
    location, out = str(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    following = Following(location, out)
    with strandline.open(location, spark=spark, config={"keep_history": "0"}) as env:
        env.execute("CREATE TABLE t (id INT, k INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS many, sum(id) AS total FROM t GROUP BY k")
        env.insert("t", [{"id": n, "k": n % 10} for n in range(100)])
        env.tick()
        for _ in range(KILLS):
            process, before = following.start("follow"), following.batches
            end = time.monotonic() + WELL_S_MAX
            while following.batches < before + 2:
                assert process.poll() is None, following.said
                assert time.monotonic() < end, following.said
                env.insert("t", [{"id": chance.randrange(1000), "k": chance.randrange(12)}])
                env.tick()
            time.sleep(chance.random())  # noqa: TID251 - somewhere in a batch
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for _ in range(TICKS_BETWEEN):  # history is released meanwhile, as far as the stream lets it
                env.tick()
        env.execute("DELETE FROM t WHERE id < 7")
        env.tick()
        assert following.start("once").wait(WELL_S_MAX) == 0, following.said
        rows = spark.read.schema("k INT, many BIGINT, total BIGINT, __time BIGINT, __diff BIGINT").json(f"{out}/rows")
        added = rows.groupBy("k", "many", "total").sum("__diff").where("`sum(__diff)` <> 0").collect()
        assert all(row["sum(__diff)"] == 1 for row in added), added
        found = sorted((row.k, row.many, row.total) for row in added)
        assert found == sorted(map(tuple, env.query("SELECT k, many, total FROM v").collect()))
        with opened(Place(location, None, ())) as door:

            async def holds() -> list[str]:
                handle = await door.plain((await door.catalog()).collection("v"))
                return [name for name in handle.state.criticals if name.startswith("spark-stream")]

            assert len(door.run(holds())) == 1, "each start left a hold"
