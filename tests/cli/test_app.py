"""The commands, as a person types them: a new project runs, is asked, is explained; output is text or JSON."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress

import psutil
import pytest

from strandline.cli import main
from strandline.cli.template import FILES


@pytest.fixture
def shop(place, tmp_path):
    """The project that ``strandline init`` makes, with rows in its table, after a tick."""
    place.root = tmp_path / "shop"
    assert main(["init", str(place.root)]) == 0
    for name in ("incoming/first.csv",):  # it has settled long ago
        os.utime(place.root / name, (1_700_000_000, 1_700_000_000))
    assert place.run("run", "--once").status == 0
    assert place.run("sql", "-f", str(place.root / "products.sql")).status == 0
    assert place.run("run", "--once").status == 0
    return place


@pytest.mark.spark
def test_a_new_project_runs_as_it_is(shop):
    """Damage: the first command of a new user does not work."""
    rows = shop.run("query", "--json", "SELECT * FROM sales ORDER BY product, day").documents[0]["rows"]
    assert [(row["product"], row["day"], row["orders"], row["amount"]) for row in rows] == [
        ("coffee", "2026-01-01", 1, "6.00"),
        ("tea", "2026-01-01", 1, "9.00"),
        ("tea", "2026-01-02", 1, "22.50"),
    ]
    assert shop.run("verify", "sales").status == 0
    assert shop.run("verify", "reports").status == 0


@pytest.mark.spark
def test_answers_are_a_table_for_people_and_a_document_for_programs(shop):
    """A program would have to read what is aligned for the eye."""
    shown = shop.run("query", "SELECT product, NULL AS nothing, 1 AS n FROM sales WHERE product = 'coffee'")
    assert [line.split() for line in shown.out.splitlines()] == [["product", "nothing", "n"], ["coffee", "NULL", "1"]]
    (document,) = shop.run("query", "--json", "SELECT 1 AS n, double('NaN') AS x").documents
    assert document["rows"] == [{"n": 1, "x": None}]


@pytest.mark.spark
def test_a_view_is_explained(shop):
    """Damage: no command shows why a view is slow."""
    (found,) = shop.run("explain", "sales", "--json").documents
    assert found["incremental"] is True
    assert found["reasons"] == []
    assert any("SELECT" in stage["sql"] for stage in found["stages"])
    assert any(stage["looks_up"] for stage in found["stages"])
    assert "imports: orders, products" in shop.run("explain", "sales").out


@pytest.mark.spark
def test_status_shows_the_objects_and_the_writer(shop):
    """Whether anything goes on could only be seen from inside."""
    (found,) = shop.run("status", "--json").documents
    assert set(found["collections"]) == {"orders", "products", "sales"}
    assert found["holder"] is None
    shown = shop.run("status").out
    assert "written by no process now" in shown
    assert all(name in shown for name in ("orders", "products", "sales", "materialization", "reports"))


@pytest.mark.spark
def test_a_script_answers_a_document_a_statement(shop):
    """Which of several statements gave which answer would be a guess."""
    said = shop.sql("SELECT count(*) AS n FROM products; DELETE FROM products WHERE id = 1; SELECT 1 AS one")
    answer, deleted, last = said.documents
    assert (answer["rows"], last["rows"]) == ([{"n": 2}], [{"one": 1}])
    assert deleted["statement"] == "Delete"
    assert deleted["timestamp"] > 0


def test_a_new_project_never_writes_over_anything(tmp_path, capsys):
    """Damage: a user's own files are deleted."""
    (tmp_path / "mine").write_text("x")
    assert main(["init", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"strandline: the directory {str(tmp_path)!r} is not empty; a new project needs one that is\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert main(["init", "--json", str(tmp_path / "new")]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == list(FILES)


def test_help_names_every_command(alone):
    """Damage: no user finds a command that the help does not name."""
    said = alone(["--help"])
    assert said.status == 0
    commands = ("init", "run", "status", "query", "verify", "explain", "sql", "demo", "bench")
    assert all(f"  {command} " in said.out for command in commands)


@pytest.mark.kill
def test_an_interrupt_while_it_runs_ends_it_in_order_though_spark_is_gone_already(place):
    """Damage: a supervisor that ends all processes of a service finds it failed, or its location is left held."""
    place.write({"tables/t.sql": "CREATE TABLE t (a INT)"})
    process = place.start()
    process.stdout.readline()
    (spark,) = [each for each in psutil.Process(process.pid).children() if "java" in each.name()]
    assert os.getpgid(spark.pid) != process.pid, "Ctrl-C ends what it computes for a tick that is to finish"
    spark.kill()
    with suppress(psutil.TimeoutExpired):  # it is there until its parent asks for its status, which it need not
        spark.wait(5)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    said = place.run("status", "--json").documents[0]
    assert (said["holder"], said["serving"]) == (None, None)


@pytest.mark.spark
def test_run_ends_once_a_time_is_complete(place):
    """A script could not wait for what it has just written to be in every view."""
    place.write({"tables/t.sql": "CREATE TABLE t (a INT)"})
    assert place.run("run", "--once").status == 0
    written = place.sql("INSERT INTO t VALUES (1)").documents[0]["timestamp"]
    said = place.run("run", "--json", "--tick-ms", "10", "--until", str(written + 50))
    assert said.status == 0
    assert said.documents[-1]["time"] >= written + 50
