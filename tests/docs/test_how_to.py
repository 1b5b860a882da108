"""The pages of docs/how-to, followed against real servers.

The commands of the pages run in this process, beside the tests' one Spark application: where a page says
`strandline run`, a tick is made, and another one whenever the reader looks again.  The page about a cluster is followed
by `tests/cluster`, with processes of its own.
"""

from __future__ import annotations

import ast
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.walk import DOCS, Block, Reader

import strandline
from kafka_server import KafkaServer
from postgres_server import PLAIN, USER, PostgresDatabase, PostgresServer
from strandline.cli import main

PAGES = {path.stem: path.read_text() for path in sorted((DOCS / "how-to").glob("*.md"))}
NUMBERS = itertools.count()


@dataclass
class Beside(Reader):
    """A reader whose commands run in this process, on a Spark session that others use too."""

    spark: Any = None
    running: bool = field(default=False)

    def begin(self, block: Block) -> None:
        """Make the tick that the page's `strandline run` would make."""
        assert block.text == "strandline run\n"
        self.running = True
        status, said = self._tick()
        assert status == 0, said

    def interrupt(self) -> None:
        """Let it make no more ticks."""
        assert self.running
        self.running = False

    def execute(self, block: Block) -> tuple[int, str]:
        """Run a block: our commands here, all others by the shell."""
        if block.language != "sh" or "strandline " not in block.text:
            return super().execute(block)
        if self.running and "again until it says so" in block.notes:
            self._tick()
        said = ""
        for line in block.text.splitlines():
            if line.startswith("cd ") or not re.search(r"\bstrandline ", line):
                status, printed = super().execute(Block(block.line, "sh", None, line, ()))
            else:
                status, printed = self._ours(line)
            said += printed
            if status:
                return status, said
        return 0, said

    def run(self, block: Block) -> None:
        """Run a block, and a tick before it is run again."""
        if self.running and "again until it says so" in block.notes and "strandline " not in block.text:
            for _ in range(20):
                self._tick()
                status, said = self.execute(block)
                if status == 0 and said == block.shown:
                    return
        super().run(block)

    def _ours(self, line: str) -> tuple[int, str]:
        given, _, command = line.rpartition(" | ")
        command, quiet, _ = command.partition(" 2>")
        words = shlex.split(command)
        assert words[0] == "strandline"
        words = words[1:]
        if given:  # echo "…" | strandline sql -f -
            script = self.directory / "given.sql"
            script.write_text(shlex.split(given)[1])
            words[words.index("-")] = str(script)
        return self._called(words, quiet=bool(quiet))

    def _tick(self) -> tuple[int, str]:
        return self._called(["run", "--once"], quiet=False)

    def _called(self, words: list[str], *, quiet: bool) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.directory), redirect_stdout(out), redirect_stderr(err):
            status = main(words, spark=self.spark)
        return status, out.getvalue() + ("" if quiet else err.getvalue())


@pytest.fixture
def database(postgres_server: PostgresServer) -> Any:
    """A database of the test's own."""
    with postgres_server.database() as made:
        yield made


def to_here(page: str, database: PostgresDatabase) -> str:
    """Return a page whose server is the tests'."""
    for said, ours in (
        ("host = 'db.example.com', port = '5432', database = 'bank'", _as_definition(database, " = ")),
        ("host 'db.example.com', port '5432', database 'bank'", _as_definition(database, " ")),
    ):
        assert said in page
        page = page.replace(said, ours)
    return page


def _as_definition(database: PostgresDatabase, sign: str) -> str:
    options = {**database.options}
    options.pop("user")
    return ", ".join(f"{name}{sign}'{text}'" for name, text in options.items())


@pytest.mark.server
def test_the_page_from_postgresql_to_postgresql(spark: Any, database: PostgresDatabase, tmp_path: Path) -> None:
    """Damage: the first pipeline that an operator copies is refused, or gives other rows."""
    binaries = f"{database.server.binaries}{os.pathsep}{os.environ['PATH']}"
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(database.server.port), "PGDATABASE": database.name, "PGUSER": USER}
    here["PGOPTIONS"] = " ".join(f"-c{each}" for each in PLAIN)
    reader = Beside(tmp_path, {**here, "PATH": binaries}, spark=spark)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PG_PASSWORD", "no-password-is-asked-for")
        done = list(reader.follow(to_here(PAGES["postgres-to-postgres"], database)))
    assert len([block for block in done if block.shown]) >= 3


@pytest.mark.server
def test_the_page_from_kafka_to_delta(spark: Any, kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Damage: the first pipeline that an operator copies is refused, or keeps rows that were deleted."""
    page, topic = PAGES["kafka-to-delta"], f"orders_{next(NUMBERS)}"
    page = page.replace("kafka-1:9092,kafka-2:9092", kafka_server.servers)
    page = page.replace("topic = 'orders'", f"topic = '{topic}'").replace('produce("orders"', f'produce("{topic}"')
    kafka_server.make_topic(topic, 2)
    done = list(Beside(tmp_path, spark=spark).follow(page))
    assert len([block for block in done if block.shown]) >= 3


@pytest.mark.server
def test_what_is_backed_up_is_restored(spark: Any, postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Damage: an operator has backups for years, and finds out on the day that they are needed that they are none."""
    done = list(Beside(tmp_path, spark=spark).follow(PAGES["backup"]))
    assert len([block for block in done if block.shown]) >= 3


@pytest.mark.server
def test_the_commands_beside_dbt_and_airflow(spark: Any, tmp_path: Path) -> None:
    """Damage: a DAG is red every hour, because a command that the page shows does not exist."""
    page = PAGES["dbt-and-airflow"]
    done = list(Beside(tmp_path, spark=spark).follow(page))
    written = {block.title: block.text for block in done if block.title}
    for name in ("dbt/profiles.yml", "dbt/models/sources.yml"):
        assert yaml.safe_load(written[name])
    dag = ast.unparse(ast.parse(written["dags/shop.py"]))
    ours = re.findall(r"'strandline (\w+) (\w+) --project /srv/shop'", dag)
    assert ours == [("sync", "reports"), ("verify", "reports")]
    (run,) = [block.text for block in done if block.text.startswith("strandline sync")]
    assert run.splitlines() == [f"strandline {command} {name}" for command, name in ours]


@pytest.mark.server
def test_a_dump_of_consensus_beside_a_copy_of_the_bytes_is_a_backup(
    spark: Any, database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the order that the page gives leaves a location that names objects that the copy lacks."""
    url = f"{database.url}&schema=strandline"
    programs = database.server.binaries

    def opened(directory: str, **config: bool) -> Any:
        return strandline.open(f"file://{tmp_path}/{directory}", consensus=url, spark=spark, config=config)

    with opened("data") as env:
        env.execute("CREATE TABLE t (k INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        env.insert("t", [{"k": 1}, {"k": 2}])
        env.tick()
        dump = [programs / "pg_dump", "--schema", "strandline", "--format", "custom", "--file", tmp_path / "dump"]
        subprocess.run([*dump, database.url], check=True)
        env.insert("t", [{"k": 3}])  # what comes while the bytes are copied
        env.tick()
        shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("serving", "push"))
    database.run("DROP SCHEMA strandline CASCADE")
    subprocess.run([programs / "pg_restore", "--dbname", database.url, tmp_path / "dump"], check=True)
    shutil.rmtree(tmp_path / "data")
    with opened("copy", take_over=True) as env:  # the dump says that this process writes, which lives
        assert env.answer("SELECT n FROM v")[0].to_pylist() == [{"n": 2}]
        env.insert("t", [{"k": 4}])
        env.tick()
        assert env.verify("v").ok
        assert env.answer("SELECT n FROM v")[0].to_pylist() == [{"n": 3}]
