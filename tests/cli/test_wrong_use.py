"""Kinds of wrong use: each is one sentence that says what to do, has the right exit status, and is on a page."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import strandline
from strandline.cli import main
from strandline.cli.terminal.output import printable

pytestmark = pytest.mark.spark

DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
HEAD = "| wrong use | command | what it says | status |\n| --- | --- | --- | --- |\n"
PROJECT = {
    "strandline.yml": "location: data\n",
    "tables/t.sql": "CREATE TABLE t (id INT, name STRING) KEEP HISTORY FOR '1 hour'",
    "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS n FROM t GROUP BY name",
    "materializations/m.sql": "CREATE MATERIALIZATION m INTO duckdb OPTIONS (path 'out.duckdb') AS v",
}


@dataclass(frozen=True)
class Wrong:
    """A wrong use: what it is called, the command, what makes it wrong, its exit status; ``sql``: a script to run."""

    what: str
    command: tuple[str, ...]
    status: int = 1
    files: tuple[tuple[str, str], ...] = ()
    sql: str = ""
    does: str = ""


QUERY = "query"
WRONG = (
    Wrong("no project", ("status",), does="no_project"),
    Wrong("settings that are no YAML", ("status",), files=(("strandline.yml", "location: [1\n"),)),
    Wrong("a setting that there is not", ("status",), files=(("strandline.yml", "location: data\nlocatoin: x\n"),)),
    Wrong("settings of the wrong type", ("status",), files=(("strandline.yml", "location: data\ntick_ms: soon\n"),)),
    Wrong("an option that there is not", ("status", "--fast"), status=2),
    Wrong("a command that there is not", ("stats",), status=2),
    Wrong("SQL that cannot be read", (QUERY, "SELECT name FROM t WHERE AND id = 1")),
    Wrong("a collection that there is not", (QUERY, "SELECT * FROM tt")),
    Wrong("a column that there is not", (QUERY, "SELECT nam FROM t")),
    Wrong("a statement where a query belongs", (QUERY, "DELETE FROM t")),
    Wrong("a time before the history", (QUERY, "SELECT * FROM t AS OF 5")),
    Wrong("a time to come", (QUERY, "SELECT * FROM t AS OF TIMESTAMP '2999-01-01'")),
    Wrong("a time that is none", (QUERY, "SELECT * FROM t", "--as-of", "yesterday"), status=2),
    Wrong("a wrong type in INSERT", ("sql",), sql="INSERT INTO t VALUES ('one', 'tea')"),
    Wrong("too many values in INSERT", ("sql",), sql="INSERT INTO t VALUES (1, 'tea', 3)"),
    Wrong("an unknown column in INSERT", ("sql",), sql="INSERT INTO t (id, colour) VALUES (1, 'red')"),
    Wrong("a statement that is not supported", ("sql",), sql="MERGE INTO t USING v ON true WHEN MATCHED THEN DELETE"),
    Wrong("a script without its COMMIT", ("sql",), sql="BEGIN; DELETE FROM t WHERE id = 1"),
    Wrong("dropping what others read", ("sql",), sql="DROP TABLE t"),
    Wrong("a view that refers to itself", ("sql",), sql="CREATE MATERIALIZED VIEW w AS SELECT * FROM w"),
    Wrong("a name that is taken", ("sql",), sql="CREATE TABLE v (a INT)"),
    Wrong(
        "an endpoint that there is not",
        ("run", "--once"),
        files=(("materializations/n.sql", "CREATE MATERIALIZATION n INTO duckbd OPTIONS (path 'x') AS v"),),
    ),
    Wrong(
        "a connector that there is not",
        ("run", "--once"),
        files=(("sources/s.sql", "CREATE SOURCE s (a INT) USING kafak OPTIONS (topic 'x')"),),
    ),
    Wrong(
        "a secret in a definition",
        ("run", "--once"),
        files=(("connections/c.sql", "CREATE CONNECTION c TO POSTGRES (host = 'h', password = 'hunter2')"),),
    ),
    Wrong(
        "a changed definition", ("run", "--once"), files=(("tables/t.sql", "CREATE TABLE t (id STRING, name STRING)"),)
    ),
    Wrong("a second writer", ("run", "--once"), does="held"),
    Wrong("a file where the location should be", ("run", "--once"), does="in_the_way"),
    Wrong("a location that was deleted", ("status",), does="deleted"),
    Wrong("a damaged part", (QUERY, "SELECT max(name) AS m FROM t"), does="damaged"),
    Wrong("no Java", (QUERY, "SELECT * FROM t"), does="no_java"),
    Wrong("control characters in a name", (QUERY, "SELECT * FROM `\x1b[31mred`")),
    Wrong("what is no view", ("explain", "t")),
    Wrong("a script that is not there", ("sql", "-f", "nowhere.sql")),
    Wrong("a shard that there is not", ("inspect", "shard", "nothing")),
)


@pytest.fixture(scope="module")
def shop(spark, tmp_path_factory):
    """A project that has run once, with a row in its table and in a part of Parquet."""
    root = tmp_path_factory.mktemp("wrong") / "project"
    write(root, PROJECT)
    with strandline.open(f"file://{root}/data", spark=spark) as env:
        env.execute(PROJECT["tables/t.sql"])
        env.insert("t", spark.range(400).selectExpr("CAST(id AS INT) AS id", "repeat(uuid(), 100) AS name"))
    assert main(["run", "--once", "--project", str(root)], spark=spark) == 0
    return root


def write(root: Path, files: dict[str, str]) -> None:
    """Write files of a project."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def circumstance(does: str, root: Path, spark, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Make what is wrong around a command, and yield the session that it has."""
    match does:
        case "no_project":
            (root / "strandline.yml").unlink()
            yield spark
        case "held":
            with strandline.open(f"file://{root}/data", spark=spark):
                yield spark
        case "in_the_way":
            shutil.rmtree(root / "data")
            (root / "data").write_text("a file where the location should be")
            yield spark
        case "deleted":
            shutil.rmtree(root / "data")
            yield spark
        case "damaged":
            (part, *_) = sorted((root / "data" / "blob").rglob("part-*.parquet"))
            whole = part.read_bytes()
            part.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
            yield spark
        case "no_java":
            monkeypatch.setenv("JAVA_HOME", "/nowhere")
            yield None
        case _:
            yield spark


def normal(text: str, root: Path) -> str:
    """Return a message as it is in any project, at any time and in any process."""
    for pattern, stands in (
        (re.escape(str(root)), "/project"),
        (r"\d{13,}", "T"),
        (r"process \d+ on \S+", "process P on HOST"),
        (r"since \d{4}-\S+( \d\S+)?", "since WHEN"),
        (r"[0-9a-f]{32}", "ID"),
        (r"blob/\S+", "blob/…"),
    ):
        text = re.sub(pattern, stands, text)
    return text


def told(wrong: Wrong, shop: Path, tmp_path: Path, spark, capsys, monkeypatch) -> tuple[int, str]:
    """Make the wrong use in a project of its own, and return its exit status and all that it said."""
    root = tmp_path / "project"
    shutil.copytree(shop, root)
    write(root, dict(wrong.files))
    command = list(wrong.command)
    if wrong.sql:
        write(root, {"script.sql": wrong.sql})
        command += ["-f", str(root / "script.sql")]
    capsys.readouterr()
    with circumstance(wrong.does, root, spark, monkeypatch) as session:
        status = main([*command, "--project", str(root)], spark=session)
    said = capsys.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if not line.startswith("timestamp=")]
    return status, normal("\n".join(lines), root)


def row(wrong: Wrong, said: str, status: int) -> str:
    """Return the line of the page."""
    words = [f"'{part}'" if " " in part else part for part in wrong.command]
    command = printable(" ".join(["strandline", *words, *(["-f", "FILE"] if wrong.sql else [])]))
    mark = "``" if "`" in command else "`"
    shown = f"{mark}{command}{mark}" + (f", FILE: `{wrong.sql}`" if wrong.sql else "")
    sentence = said.removeprefix("strandline: ").replace("|", "\\|")
    return f"| {wrong.what} | {shown} | {sentence} | {status} |\n"


def test_each_wrong_use_is_one_sentence_and_is_on_the_page(shop, tmp_path, spark, capsys, monkeypatch) -> None:
    """Damage: who mistypes meets a traceback, half a page, or a status that a script takes for success."""
    rows, wrong_ones = [], {}
    for n, wrong in enumerate(WRONG):
        with monkeypatch.context() as patch:
            status, said = told(wrong, shop, tmp_path / str(n), spark, capsys, patch)
        sentences = [line for line in said.splitlines() if line]
        if status == 2:  # the parser of the command line says the usage, and then what is wrong
            sentences = sentences[-1:] if len(sentences) == 1 else [line for line in sentences if "Error" in line]
            said = sentences[0].removeprefix("Error: ") if sentences else said
        elif not said.startswith("strandline: "):
            wrong_ones[wrong.what] = said
        if (status, len(sentences)) != (wrong.status, 1) or "Traceback" in said or printable(said) != said:
            wrong_ones[wrong.what] = (status, said)
        rows.append(row(wrong, said, status))
    assert not wrong_ones
    assert len(WRONG) >= 25
    page, table = DOCS.read_text(), HEAD + "".join(rows)
    if os.environ.get("STRANDLINE_REWRITE"):
        begin = page.index(HEAD)
        end = page.index("\n\n", begin) + 1
        DOCS.write_text(page[:begin] + table + page[end:])
    assert table in DOCS.read_text(), "write it anew: STRANDLINE_REWRITE=1 python -m pytest tests/cli/test_wrong_use.py"
