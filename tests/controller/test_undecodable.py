"""Undecodable records of files come and go, on Spark: right or an error at every time, and healed at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from strandline.client import Environment
from strandline.errors import CollectionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

Rows = Callable[..., list[dict[str, Any]]]
VIEWS = {
    "linear": "SELECT id, n + 1 AS m FROM s WHERE n > 0",
    "joined": "SELECT s.id, u.name FROM s JOIN u ON s.n = u.k",
    "summed": "SELECT n, count(*) AS c, sum(id) AS total FROM s GROUP BY n",
    "ranged": "SELECT n % 3 AS r, max(id) AS most FROM s GROUP BY n % 3",
    "recomputed": "SELECT id, rank() OVER (ORDER BY n, id) AS r FROM s",
    "above": "SELECT count(*) AS n FROM joined",
}
NUMBERS = [f"x{i},{i}" for i in range(25)]
SHAPES = [f"{i},{i},{i}" for i in range(24)] + ["7,7,7"]  # one of them is there twice


class Files:
    """A directory of CSV files that are old enough to be taken."""

    def __init__(self, root: Path) -> None:
        self.root = root / "in"
        self.root.mkdir()

    def write(self, name: str, lines: Iterable[str]) -> None:
        """Put a file there."""
        path = self.root / name
        path.write_text("".join(f"{line}\n" for line in ("id,n", *lines)))
        os.utime(path, (1_700_000_000, 1_700_000_000))


def _define(env: Environment, files: Files, endpoint: Path) -> None:
    options = f"path '{files.root}/*.csv', settle '0', retract '*.retract.csv'"
    env.execute("CREATE TABLE u (k INT, name STRING)")
    env.execute(f"CREATE SOURCE s (id INT, n INT) USING files OPTIONS ({options})")
    for name, query in VIEWS.items():
        env.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    env.execute(f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{endpoint}') AS linear KEY (id)")
    env.insert("u", [{"k": 1, "name": "one"}, {"k": 2, "name": "two"}])


def _right_or_failing(env: Environment, rows: Rows, endpoint: Path, *, errors: int) -> None:
    """Assert that each view, and the endpoint, is right now; or has the errors of the source, and says so."""
    status = env.status()
    for name in ("s", *VIEWS):
        assert status["collections"][name]["errors"]["rows"] == errors, name
        if errors:
            with pytest.raises(CollectionError, match=rf"{name!r} has {errors} error"):
                rows(env, f"SELECT * FROM {name}")
        elif name in VIEWS:
            assert env.verify(name).ok, name
    assert not any(status["collections"][name]["problem"] for name in VIEWS), "no view stands still"
    if errors:
        assert "errors since" in status["materializations"]["out"]["problem"]
    else:
        assert not status["materializations"]["out"]["problem"]
        with duckdb.connect(str(endpoint), read_only=True) as connection:
            stored = connection.execute("SELECT id, m FROM linear").fetchall()
        assert sorted(stored) == [(row["id"], row["m"]) for row in rows(env, "SELECT id, m FROM linear")]


def test_undecodable_rows_of_a_file_source_come_and_go_under_views_of_every_kind(
    place: Place, rows: Rows, tmp_path: Path
) -> None:
    """Damage: bad records stop a source and all above it for ever, though their author has taken them back."""
    files, endpoint = Files(tmp_path), tmp_path / "out.duckdb"
    with place.open() as env:
        _define(env, files, endpoint)
        files.write("a.csv", ["1,1", "2,2"])
        good = env.tick()
        _right_or_failing(env, rows, endpoint, errors=0)
        files.write("b.csv", ["3,2", *NUMBERS])
        env.tick()
        files.write("c.csv", [*SHAPES, "4,1"])
        env.tick()
        _right_or_failing(env, rows, endpoint, errors=50)
        assert rows(env, "SELECT id FROM linear", as_of=good) == [{"id": 1}, {"id": 2}], "the past is as it was"
        files.write("d.retract.csv", [*NUMBERS[:20], "3,2", "7,7,7"])
        env.tick()
        files.write("e.csv", ["3,1"])
    with place.open() as env:  # what is taken back after a restart finds what came before it
        seen = env.tick()
        _right_or_failing(env, rows, endpoint, errors=29)
        files.write("f.retract.csv", [*NUMBERS[20:], *SHAPES[:14]])
        env.tick()
        last = rows(env, "SELECT raw FROM s_errors")
        assert [row["raw"] for row in last] == sorted(SHAPES[14:24])
        assert rows(env, "SELECT count(*) AS n FROM s_errors", as_of=seen) == [{"n": 29}]
        assert env.skip("s", apply=True)["rows"] == len(last)
        env.tick()
        _right_or_failing(env, rows, endpoint, errors=0)
        assert rows(env, "SELECT id, name FROM joined") == [
            {"id": 1, "name": "one"}, {"id": 2, "name": "two"}, {"id": 3, "name": "one"}, {"id": 4, "name": "one"},
        ]  # fmt: skip
