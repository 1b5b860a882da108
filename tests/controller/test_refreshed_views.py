"""Views with schedules on Spark: every kind of stage, what verifies them, and an endpoint that follows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from strandline.client import Environment
from strandline.errors import AsOfError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
VIEWS: Final = {
    "sums": "SELECT k, count(*) AS n, sum(v) AS v FROM t GROUP BY k",
    "joined": "SELECT t.k, t.v, u.w FROM t JOIN u ON t.k = u.k",
    "tops": "SELECT k, max(v) AS v, min(v) AS w FROM t GROUP BY k",
    "ranked": "SELECT k, v FROM (SELECT k, v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM t) WHERE n <= 2",
    "recomputed": "SELECT k, percentile(v, 0.5) AS v FROM t GROUP BY k",
    "filtered": "SELECT DISTINCT k FROM t WHERE v > 3",
}
EVERY_MS: Final = 10_000
AHEAD_MS: Final = 3_600_000
"""So far ahead of the clock that the test alone says what time it is."""


def contents(env: Environment, name: str, at: int) -> list[Any]:
    """Return the rows of a collection at a time, sorted."""
    return sorted((tuple(row) for row in env.query(f"SELECT * FROM {name}", as_of=at).collect()), key=str)


def change(env: Environment, n: int) -> None:
    """Insert, update and delete rows, as the number says."""
    env.execute(f"INSERT INTO t VALUES ('a', {n}), ('b', {n % 4}), ('c', {n * 7 % 5})")
    if n % 3 == 0:
        env.execute(f"DELETE FROM t WHERE v = {n - 2}")
    if n % 4 == 1:
        env.execute(f"UPDATE t SET v = v + 1 WHERE k = 'b' AND v < {n % 4}")
    if n % 2 == 0:
        env.execute(f"INSERT INTO u VALUES ('{'abc'[n % 3]}', {n})")


def test_views_of_every_kind_show_their_last_refresh(place: Place, tmp_path: Path) -> None:
    """Damage: some kind of state is brought on by windows of one time only, or an endpoint is ahead of its view."""
    target = tmp_path / "target.duckdb"
    with place.open(config={"keep_history": "1 day"}) as env:
        env.execute("CREATE TABLE t (k STRING, v INT)")
        env.execute("CREATE TABLE u (k STRING, w INT)")
        change(env, 0)
        start = env.tick() // EVERY_MS * EVERY_MS + AHEAD_MS
        env.tick(start - 5_000)
        for name, query in VIEWS.items():
            env.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
            env.execute(
                f"CREATE MATERIALIZED VIEW {name}_timed REFRESH EVERY '10 s' ALIGNED TO '1970-01-01' AS {query}"
            )
        env.execute(f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{target}') AS sums_timed KEY (k)")
        env.tick(start - 2_000)
        assert env.status()["problems"] == {}
        assert env.status()["waiting"] == {"out": "it waits for the first refresh of 'sums_timed'"}
        with pytest.raises(AsOfError, match="before its first refresh"):
            env.verify("sums_timed")
        for n in range(1, 8):
            change(env, n)
            time = env.tick(start + n * 3_700)
            assert env.status()["problems"] == {}
            shown = time // EVERY_MS * EVERY_MS
            for name in VIEWS:
                assert contents(env, f"{name}_timed", time) == contents(env, name, shown), (name, n)
            with duckdb.connect(str(target), read_only=True) as connection:
                copied = connection.execute("SELECT * FROM sums_timed").fetchall()
            assert sorted(copied, key=str) == contents(env, "sums", shown)
        for name in VIEWS:
            assert env.verify(f"{name}_timed").ok
        assert env.verify("out").ok
