"""Questions that need no rows are answered without Spark, from what is stored."""

from __future__ import annotations

from typing import NoReturn

import msgspec
import pytest

from strandline.cli import main
from strandline.errors import ConfigError
from strandline.wiring import on_spark

pytestmark = pytest.mark.spark

LARGE = "SELECT id, repeat('x', 2000) AS t FROM range(200)"
"""Too much to be kept inline: the table has a part of Parquet."""


@pytest.fixture
def kept(place):
    """A project that has run: a table of several rows, a view, a source and an endpoint."""
    place.write(
        {
            "tables/t.sql": "CREATE TABLE t (id BIGINT, t STRING)",
            "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT t, count(*) AS n FROM t GROUP BY t",
            "sources/s.sql": "CREATE SOURCE s (a INT) USING files OPTIONS (path 'in/*.csv', header 'true')",
            "materializations/m.sql": "CREATE MATERIALIZATION m INTO duckdb OPTIONS (path 'out.duckdb') AS v",
            "in/a.csv": "a\n1\nx\n",
        }
    )
    assert place.run("run", "--once").status == 0
    assert place.sql(f"INSERT INTO t {LARGE}").status == 0
    assert place.run("run", "--once").status == 0
    return place


def test_a_question_without_rows_starts_no_spark(kept, capsys, monkeypatch):
    """Damage: `strandline status` takes as long as a JVM does to start, and fails on a machine without Java."""
    told = {command: kept.run(*command).out for command in (("explain", "v"), ("source", "skip", "s"))}
    (status,) = kept.run("status", "--json").documents

    def build(_: object) -> NoReturn:
        raise ConfigError("Spark was started")

    monkeypatch.setattr(on_spark, "build", build)

    def ask(*command: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main([*command, "--project", str(kept.root)])
        said = capsys.readouterr()
        return status, said.out + said.err

    (kept.root / "shows.sql").write_text("SHOW VIEWS; SHOW SOURCES; DESCRIBE v; EXPLAIN v")
    for command in (
        ("status",),
        ("inspect", "shard", "t"),
        ("fsck",),
        ("compact",),
        ("gc",),
        ("backfill", "m"),
        ("sql", "-f", str(kept.root / "shows.sql")),
    ):
        assert (said := ask(*command))[0] == 0, said
    for command, said in told.items():
        assert ask(*command) == (0, said)
    errors = msgspec.json.decode(ask("status", "--json")[1])["collections"]["s"]["errors"]
    assert errors == status["collections"]["s"]["errors"]
    assert errors["rows"] == 1
    # What needs rows says what became of it, and would have said so if Spark had been started before.
    assert ask("query", "SELECT * FROM v") == (1, "strandline: Spark was started\n")


def test_a_definition_that_is_half_written_stops_no_question(kept):
    """Damage: while one view is edited, nothing can be asked of the others."""
    kept.write({"views/half.sql": "CREATE MATERIALIZED VIEW half AS SELEC"})
    for command in (
        ("status",),
        ("explain", "v"),
        ("query", "SELECT count(*) AS n FROM v"),
        ("gc",),
        ("source", "skip", "s"),
    ):
        assert (said := kept.run(*command)).status == 0, said
    for command in (("plan",), ("run", "--once"), ("source", "skip", "s", "--apply")):
        said = kept.run(*command)
        (told,) = (said.out + said.err).splitlines()
        assert said.status == 1
        assert told.endswith("views/half.sql: expected a query, found 'SELEC' (at line 1, column 34)")


def test_a_damaged_part_is_found_without_spark(kept, capsys, monkeypatch):
    """Damage: what looks for damage trusts what it cannot read without Spark."""
    (part, *_) = sorted((kept.root / "data" / "blob").rglob("part-*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:200] + b"?" + whole[201:])
    monkeypatch.setattr(on_spark, "build", lambda _: pytest.fail("Spark was started"))
    capsys.readouterr()
    assert main(["fsck", "--project", str(kept.root)]) == 3
    assert "damaged in t" in capsys.readouterr().out
