"""While Spark plans what is created, all other calls are answered; and an interrupt ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.algebra.schema import Schema
from strandline.compute.plan import view
from strandline.controller.defining.project.files import load
from strandline.engine.sql.analysis import SparkAnalyst

pytestmark = pytest.mark.spark

VIEW = "CREATE MATERIALIZED VIEW v AS SELECT id + 1 AS id FROM t"


class Slow:
    """Has Spark's answers wait until they ``may_come``; ``asked`` is set by the first question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.may_come, self.questions = threading.Event(), threading.Event(), 0
        inner = SparkAnalyst.schema_of

        def slowly(analyst: SparkAnalyst, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
            self.questions += 1
            self.asked.set()
            assert self.may_come.wait(120)
            return inner(analyst, sql, relations, ours=ours)

        monkeypatch.setattr(SparkAnalyst, "schema_of", slowly)


def test_other_calls_are_answered_while_spark_plans(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: ticks, writes and answers stop for the minute in which one CREATE plans."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env, ThreadPoolExecutor(1) as other:
        env.execute("CREATE TABLE t (id INT)")
        env.tick()
        slow = Slow(monkeypatch)
        made = other.submit(env.execute, VIEW)
        try:
            assert slow.asked.wait(120)
            env.execute("INSERT INTO t VALUES (1)")
            env.tick()
            assert env.answer("SELECT count(*) AS n FROM t")[0].to_pylist() == [{"n": 1}]
            assert not made.done()
            assert set(env.collections()) == {"t"}
        finally:
            slow.may_come.set()
        made.result()
        env.tick()
        assert env.answer("SELECT * FROM v")[0].to_pylist() == [{"id": 2}]


def test_an_interrupt_ends_the_planning(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after Ctrl-C Spark goes on planning for minutes, and the view appears in the end all the same."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env, ThreadPoolExecutor(1) as other:
        env.execute("CREATE TABLE t (id INT)")
        slow = Slow(monkeypatch)

        def interrupt() -> None:
            assert slow.asked.wait(120)
            os.kill(os.getpid(), signal.SIGINT)

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # another test may have left its own
        try:
            interrupted = other.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                env.execute(VIEW)
            interrupted.result()
        finally:
            signal.signal(signal.SIGINT, handler)
        slow.may_come.set()
        env.execute("INSERT INTO t VALUES (1)")
        env.tick()
        assert slow.questions == 1
        assert set(env.collections()) == {"t"}


def project_in(root: Path) -> Path:
    """Write a project of views over views, whose tables and views are not there yet but for ``t``."""
    said = {
        "strandline.yml": f"location: file://{root}/data\n",
        "tables/t.sql": "CREATE TABLE t (id INT);",
        "tables/u.sql": "CREATE TABLE u (id INT, name STRING);",
        "views/v.sql": f"{VIEW};",
        "views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT name, count(*) AS n FROM u JOIN v USING (id) GROUP BY 1;",
        "views/x.sql": "CREATE MATERIALIZED VIEW x AS SELECT name, n * 2 AS twice FROM w WHERE n > 0;",
    }
    for name, text in said.items():
        path = root / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "project"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["plan", "apply", "replace", "drop", "start"])
def test_other_calls_are_answered_at_each_question_of_a_project(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Damage: all calls stop for the minutes in which `plan`, `apply` or the start of a project asks Spark.

    Each question waits until another call is answered, which none is while the turn is held.
    """
    with strandline.open(str(tmp_path / "data"), spark=spark) as env, ThreadPoolExecutor(1) as other:
        env.execute("CREATE TABLE t (id INT)")
        if how == "replace":
            env.execute("CREATE TABLE u (id INT)")
            env.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM u")
        if how == "drop":
            env.execute("CREATE TABLE u (id STRING)")
            env.execute("CREATE MATERIALIZED VIEW gone AS SELECT id FROM u")
        env.execute("INSERT INTO t VALUES (1)")
        env.tick()
        project, questions, inner = project_in(tmp_path), [], SparkAnalyst.schema_of

        def answered(analyst: SparkAnalyst, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
            questions.append(sql)
            other.submit(env.progress).result(60)
            assert other.submit(env.peek, "t", {"id": 1}).result(60).num_rows == 1
            return inner(analyst, sql, relations, ours=ours)

        monkeypatch.setattr(SparkAnalyst, "schema_of", answered)
        match how:
            case "start":
                env.apply(load(project))
            case "plan":
                assert {"v", "x"} <= {each["name"] for each in env.deploy(project)["changes"]}
            case "apply" | "drop" | "replace":
                assert not env.deploy(project, apply=True, drop=["all", "gone"] if how == "drop" else ())["refused"]
        assert questions
        if how in {"apply", "drop"}:
            env.execute("INSERT INTO u VALUES (2, 'two')")
            env.tick()
            assert env.answer("SELECT * FROM x")[0].to_pylist() == [{"name": "two", "twice": 2}]


def test_a_view_whose_steps_are_too_large_is_recomputed_and_says_why(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: CREATE plans steps for minutes, and so does each tick; or the view is recomputed without a word."""
    monkeypatch.setattr(view, "STEP_NODES_MAX", 10)
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        env.execute("CREATE TABLE t (id INT, n INT)")
        env.execute("CREATE MATERIALIZED VIEW few AS SELECT id, n + 1 AS n FROM t")
        env.execute("CREATE MATERIALIZED VIEW many AS SELECT t.id, u.n FROM t LEFT JOIN t u ON t.id = u.n")
        few, many = env.explain("few"), env.explain("many")
        assert few.incremental
        assert not many.incremental
        assert "more than 10 write instead: views of some of its parts" in " ".join(str(many).split())
        env.execute("INSERT INTO t VALUES (1, 1), (2, 3)")
        env.tick()
        found = env.answer("SELECT id, n FROM many ORDER BY id")[0].to_pylist()
        assert found == [{"id": 1, "n": 1}, {"id": 2, "n": None}]
