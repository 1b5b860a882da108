"""Bad input is reported in one sentence, with its position and a remedy; no stored data is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from strandline.cli import main
from strandline.materialize.drivers.duckdb.file import DuckDBFile

ORDERS = {
    "tables/products.sql": "CREATE TABLE products (id INT, name STRING)",
    "views/names.sql": "CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS n FROM products GROUP BY name",
}
REPORTS = {
    "materializations/reports.sql": "CREATE MATERIALIZATION reports INTO duckdb OPTIONS (path 'r.duckdb') AS names"
}


def one_sentence(said):
    """A failed command says one line on standard error, without a traceback; return it without the program's name."""
    assert said.status == 1
    (line,) = [line for line in said.err.splitlines() if not line.startswith("timestamp=")]
    assert line.startswith("strandline: ")
    return line.removeprefix("strandline: ")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("view", "said"),
    [
        ("CREATE MATERIALIZED VIEW v AS\nSELECT name FROM products\nWHERE AND id", "line 3, column"),
        ("CREATE MATERIALIZED VIEW v\nSELECT 1", "expected AS, found 'SELECT' (at line 2, column 1)"),
        ("CREATE MATERIALIZED VIEW v AS\nSELECT id, rand() AS r FROM products", "rand"),
        ("CREATE MATERIALIZED VIEW v AS SELECT nam FROM products", "name"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM product", "did you mean products?"),
    ],
)
def test_a_wrong_view_is_refused_with_its_place_and_the_rest_goes_on(place, view, said):
    """Damage: the error does not say what to fix, or one bad view stops the good ones."""
    place.write({**ORDERS, "views/v.sql": view})
    told = one_sentence(place.run("run", "--once"))
    assert told.startswith("views/v.sql: ")
    assert said in told
    (place.root / "views/v.sql").unlink()
    assert place.run("run", "--once").status == 0


@pytest.mark.spark
def test_a_wrong_statement_of_a_script_has_its_line_in_the_script(place):
    """Damage: the position is in a text that the user did not write."""
    place.write(ORDERS)
    assert place.run("run", "--once").status == 0
    told = one_sentence(place.sql("INSERT INTO products VALUES (1, 'tea');\n\nUPDATE products SET nam = 'x';"))
    assert "'nam'" in told
    told = one_sentence(place.sql("INSERT INTO products VALUES (1, 'tea');\n\n  UPDATE products SAT name = 'x';"))
    assert told.endswith("(at line 3, column 19)")


@pytest.mark.spark
def test_a_changed_query_takes_the_place_of_the_one_before(place):
    """Damage: a new column in a view takes a stop and four commands, or the file says something else than is there."""
    place.write(ORDERS)
    assert place.run("run", "--once").status == 0
    place.write({"views/names.sql": "CREATE MATERIALIZED VIEW names AS SELECT name FROM products"})
    assert "replacing views=names" in place.run("run", "--once").err
    assert place.run("query", "--json", "SELECT * FROM names").documents[0]["columns"] == [
        {"name": "name", "type": "string"}
    ]


def test_a_location_that_cannot_be_written_is_named(tmp_path, alone):
    """An error about some file of ours would not say which setting is wrong."""
    (tmp_path / "file").write_text("")
    (tmp_path / "strandline.yml").write_text("location: file/data\n")
    told = one_sentence(alone(["run", "--once", "--project", str(tmp_path)]))
    assert told == f"location '{tmp_path}/file/data' cannot be created: Not a directory"


def test_missing_java_is_named(tmp_path, alone):
    """Spark itself says forty lines about something else."""
    (tmp_path / "strandline.yml").write_text("location: data\n")
    (tmp_path / "one.sql").write_text("CREATE TABLE t (k INT)")
    command = ["sql", "-f", str(tmp_path / "one.sql"), "--project", str(tmp_path)]
    told = one_sentence(alone(command, PATH="", JAVA_HOME=""))
    assert told.startswith("Spark needs Java and none is found: install a JDK")


def test_wrong_usage_ends_with_status_2(tmp_path, alone):
    """Damage: a script cannot distinguish a misspelt option from a failed run."""
    assert [alone(each).status for each in (["run", "--onec"], ["verify"], ["nonsense"])] == [2, 2, 2]


def test_a_traceback_is_shown_on_request(tmp_path, alone):
    """A report of a failure would not say where it came from."""
    said = alone(["status", "--project", str(tmp_path)], STRANDLINE_TRACEBACK="1")
    assert said.status == 1
    assert "Traceback (most recent call last)" in said.err


@pytest.mark.spark
def test_a_locked_duckdb_file_is_a_problem_of_its_materialization_alone(place, monkeypatch):
    """Damage: a program that opens the file stops the whole environment, or rows are lost."""
    monkeypatch.setitem(DuckDBFile.__init__.__kwdefaults__, "lock_wait_s", 0.1)
    place.write({**ORDERS, **REPORTS})
    assert place.run("run", "--once").status == 0
    assert place.sql("INSERT INTO products VALUES (1, 'tea')").status == 0
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(place.root / "r.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        told = one_sentence(place.run("run", "--once"))
        assert f"r.duckdb is locked by process {other.pid}" in told
        reports = place.run("status", "--json").documents[0]["materializations"]["reports"]
        assert f"is locked by process {other.pid}" in reports["problem"]
        assert reports["position"] > 0
        assert f"is locked by process {other.pid}" in place.run("status").out.replace("\n", "")
        assert place.run("query", "--json", "SELECT * FROM names").documents[0]["rows"] == [{"name": "tea", "n": 1}]
        other.stdin.close()
    assert place.run("run", "--once").status == 0
    assert place.run("verify", "reports").status == 0


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "good", "bad", "line"),
    [
        ("csv", "id,name\n1,tea\n", "id,name\n2,mate\nx,y\n3,milk\n", 3),
        ("json", '{"id":1}\n', '{"id":2}\n{"id":\n{"id":3}\n', 2),
    ],
)
def test_a_malformed_row_is_reported_by_status_and_the_other_rows_flow(place, kind, good, bad, line):
    """One bad row would stop a source, or be lost without a word."""
    options = f"path 'in/*.{kind}', settle '0', on_error 'continue'"
    place.write(
        {
            "sources/s.sql": f"CREATE SOURCE s (id INT, name STRING) USING files OPTIONS ({options})",
            "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT id FROM s",
            f"in/a.{kind}": good,
        }
    )
    assert place.run("run", "--once").status == 0
    place.write({f"in/b.{kind}": bad})
    assert place.run("run", "--once").status == 0
    (found,) = place.run("query", "--json", "SELECT id FROM s ORDER BY id").documents
    assert [row["id"] for row in found["rows"]] == [1, 2, 3]
    errors = place.run("status", "--json").documents[0]["collections"]["s"]["errors"]
    assert errors["rows"] == 1
    assert (errors["first"][0]["file"], errors["first"][0]["line"]) == (f"b.{kind}", line)
    assert errors["first"][0]["reason"]
    assert f"s: b.{kind}, line {line}: " in place.run("status").out


def test_status_and_fsck_say_that_nothing_was_stored(tmp_path, alone):
    """A mistyped location would be made, and look healthy."""
    (tmp_path / "strandline.yml").write_text("location: data\n")
    for command in ("status", "fsck"):
        told = one_sentence(alone([command, "--project", str(tmp_path)]))
        assert told == (
            f"nothing was stored at location '{tmp_path}/data' yet; open it for writing (`strandline run`) to make it"
        )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sources", "--file-rows", "0", "--keyed-rows", "0"), "nothing is left to measure"),
        (("sources", "--keyed-rows", "5", "--keys", "6"), "6 keys are not among 5 rows"),
        (("sources", "--postgres", "nowhere"), "is not USER@HOST:PORT/DATABASE"),
        (("materialize", "--endpoint", "postgres"), "say where PostgreSQL is"),
        (("materialize", "--endpoint", "kafka"), "say where Kafka is"),
        (("materialize", "--endpoint", "postgres", "--postgres", "me@db:5432/shop"), "or --freshness-seconds 0"),
    ],
)
def test_a_benchmark_that_cannot_be_made_is_refused_before_spark_starts(capsys, arguments, said):
    """Damage: a benchmark of nothing prints a document, or fails after minutes."""
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
