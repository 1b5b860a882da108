"""The command line for a new user: typing errors, odd data, files that wait."""

from __future__ import annotations

import os

import pytest

from small_disk import fill, mounted
from strandline.cli import main, template
from strandline.cli.terminal.output import Output, as_json, printable, table

pytestmark = pytest.mark.spark

ORDERS = {
    "sources/orders.sql": """
        CREATE SOURCE orders (id INT, name STRING) USING files
        OPTIONS (path 'in/*.csv', settle '60m', on_error 'continue')
    """,
    "tables/t.sql": "CREATE TABLE t (k INT, s STRING)",
    "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT s, count(*) AS n FROM t GROUP BY s",
}
TERMINAL = "\x1b[31mred\x1b[0m\u202e\x9b\x07"
"""Colours, turned text, and a bell: what a row must not do to a terminal."""


@pytest.fixture
def orders(place):
    """A project with a source that has read a file, a table with rows, and a view."""
    place.write({**ORDERS, "in/a.csv": "id,name\n1,tea\nx,broken\n2,coffee\n"})
    os.utime(place.root / "in/a.csv", (1_700_000_000, 1_700_000_000))
    assert place.run("run", "--once").status == 0
    return place


def one_sentence(said):
    """A failed command says one line; return it without the program's name."""
    assert said.status == 1, said
    assert "Traceback" not in said.err
    (line,) = [line for line in said.err.splitlines() if not line.startswith("timestamp=")]
    assert line.startswith("strandline: ")
    return line.removeprefix("strandline: ")


def test_no_mistake_that_can_be_typed_prints_a_traceback(orders, tmp_path):
    """Damage: the first thing that a new user sees is fifty lines about our insides, and not what to mend."""
    mistakes = {
        ("query", "SELECT 1/0 AS x FROM t"): "",  # the table is empty: no row, no error
        ("query", "SELECT 1/0 AS x FROM orders"): "DIVIDE_BY_ZERO",
        ("query", "SELECT CAST(name AS INT) AS x FROM orders"): "CAST_INVALID_INPUT",
        ("query", "SELECT (SELECT id FROM orders) AS x"): "",  # what the sentence says is the engine's business
        ("query", "SELECT raise_error('no such thing') AS x FROM orders"): "no such thing",
        ("query", "SELEC 1"): "SELEC",
        ("query", ""): "",
        ("query", "SELECT * FROM ordres"): "orders",
        ("query", "SELECT nme FROM orders"): "nme",
        ("query", "SELECT * FROM t", "--as-of", "99999999999999"): "99999999999999",
        ("explain", "orders"): "orders",
        ("explain", "w"): "w",
        ("verify", "t"): "t",
        ("verify", "nothing"): "nothing",
        ("verify", "vv"): "did you mean 'v'?",
        ("query", "DELETE FROM t WHERE k = 1"): "strandline sql",
        ("inspect", "shard", "nothing"): "nothing",
        ("compact", "nothing"): "nothing",
        ("sql", "-f", str(tmp_path / "not-there.sql")): "not-there.sql",
        ("sql", "-f", str(tmp_path)): str(tmp_path),
    }
    told = {command: orders.run(*command) for command in mistakes}
    assert told.pop(("query", "SELECT 1/0 AS x FROM t")).status == 0
    assert orders.run("query", "SELECT 1 AS a, 2 AS a").out.split() == ["a", "a", "1", "2"], "an answer, as in Spark"
    wrong = {command: said for command, said in told.items() if mistakes[command] not in one_sentence(said)}
    assert not wrong
    orders.write({"strandline.yml": "location: [1\n"})
    assert "strandline.yml" in one_sentence(orders.run("status"))
    orders.write({"strandline.yml": "location: memory://\nconsensus: zookeeper://x\n"})
    assert "zookeeper" in one_sentence(orders.run("status"))
    orders.root = tmp_path / "nowhere"
    assert "strandline init" in one_sentence(orders.run("status"))


def test_what_only_this_program_can_have_done_wrong_is_one_sentence_too(monkeypatch, capsys):
    """Damage: a fault of ours looks like the user's, fifty lines long; or cannot be reported, because it is hidden."""

    def broken(directory):
        raise KeyError("\x1b[2Jk")

    monkeypatch.setattr(template, "create_project", broken)
    assert main(["init", "x"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("strandline: KeyError('\\x1b[2Jk')") or "\x1b" not in said
    assert "this is a fault of Strandline itself" in said
    assert len(said.splitlines()) == 1
    with pytest.raises(KeyError):
        main(["--debug", "init", "x"])
    assert main(["init", "x"]) == 1, "what was said to one run holds for that run alone"


def test_an_answer_says_the_time_at_which_it_is_true(orders):
    """Damage: a program that queries twice cannot find out whether both answers are of one time."""
    (first,) = orders.run("query", "--json", "SELECT * FROM orders").documents
    (again,) = orders.run("query", "--json", "SELECT * FROM orders", "--as-of", str(first["as_of"])).documents
    assert first == again
    assert first["as_of"] > 0
    assert orders.run("query", "--json", "SELECT 1 AS n").documents[0]["as_of"] is None


def test_nothing_that_data_hold_reaches_the_terminal_unescaped(orders):
    """Damage: a foreign row colours the screen, hides other rows, or types into the operator's shell."""
    orders.write({"in/b.csv": f"id,name\n3,{TERMINAL}\ny{TERMINAL},x\n"})
    os.utime(orders.root / "in/b.csv", (1_700_000_000, 1_700_000_000))
    assert orders.run("run", "--once").status == 0
    said = [
        orders.run("query", f"SELECT name, 1 AS `{TERMINAL}` FROM orders WHERE id = 3"),
        orders.run("query", "SELECT * FROM orders_errors"),
        orders.run("status"),
        orders.run("query", f"SELECT * FROM `{TERMINAL}`"),
        orders.run("query", "SELECT CAST(name AS INT) AS n FROM orders WHERE id = 3"),
    ]
    for each in said:
        shown = each.out + each.err
        assert "\\x1b[31mred\\x1b[0m\\u202e\\x9b\\x07" in shown or "\\x1b" in shown, shown
        assert printable(shown) == shown
    (document,) = orders.run("query", "--json", "SELECT name FROM orders WHERE id = 3").documents
    assert document["rows"] == [{"name": TERMINAL}], "a program gets what is there"


def test_every_way_to_the_terminal_escapes(capsys):
    """Damage: one of several openers stays open."""
    output = Output(json=False)
    output.result({}, TERMINAL)
    output.note(TERMINAL)
    output.log("event", of=TERMINAL)
    output.console.print(table([TERMINAL], [[TERMINAL], ["two\nlines"]]))
    said = "".join(capsys.readouterr())
    assert printable(said) == said
    assert said.count("\\x1b[31mred") == 5
    assert "two\\nlines" in said
    assert "\x1b" not in as_json({"a": TERMINAL})


@pytest.mark.parametrize(
    ("text", "age_h", "why"),
    [
        ("id,name\n3,milk", 2, "it does not end in a newline, so its writer may go on"),
        ("", 2, "it does not end in a newline, so its writer may go on"),
        ("id,name\n3,milk\n", 0, "it was modified less than 3600000 ms ago, so its writer may go on"),
    ],
)
def test_a_file_that_waits_is_named_by_run_and_by_status(orders, text, age_h, why):
    """Damage: a file lies there, its rows are nowhere, and nothing says why."""
    orders.write({"in/waits.csv": text})
    settled = (orders.root / "in/waits.csv").stat().st_mtime - age_h * 3600
    os.utime(orders.root / "in/waits.csv", (settled, settled))
    ran = orders.run("run", "--once")
    assert ran.status == 0
    waits = f"it waits for file 'waits.csv', which is not taken yet: {why}"
    assert waits in ran.err
    assert f"waiting: orders: {waits}" in orders.run("status").out
    assert orders.run("status", "--json").documents[0]["collections"]["orders"]["waiting"] == waits


def test_run_counts_each_record_once(orders):
    """Damage: the sum of the records read is larger than the number of records."""
    orders.write({"in/b.csv": "id,name\n3,milk\nx,broken\n"})
    os.utime(orders.root / "in/b.csv", (1_700_000_000, 1_700_000_000))
    assert "read=2" in orders.run("run", "--once").err


def test_status_and_query_answer_on_a_full_disk_and_run_says_why_it_does_not(place, tmp_path):
    """Damage: the operator gets `disk I/O error`, and cannot even query the data."""
    with mounted(tmp_path / "disk", "8m") as disk:
        if disk is None:
            pytest.skip("only root, on a machine that allows it, can mount a small file system")
        place.write({**ORDERS, "strandline.yml": f"location: {disk}/data\n", "in/a.csv": ""})
        assert place.run("run", "--once").status == 0
        assert place.sql("INSERT INTO t VALUES (1, 'tea')").status == 0
        filler = fill(disk)
        ran = place.run("run", "--once")
        assert ran.status == 1
        assert "Traceback" not in ran.err
        assert f"No space left on device in {disk}/data" in ran.err
        asked = place.run("status", "--json")
        assert (asked.status, set(asked.documents[0]["collections"])) == (0, {"orders", "t", "v"}), asked
        assert f"No space left on device in {disk}/data" in asked.err
        assert place.run("query", "--json", "SELECT * FROM t").documents[0]["rows"] == [{"k": 1, "s": "tea"}]
        filler.unlink()
        assert place.run("run", "--once").status == 0
        assert place.run("query", "--json", "SELECT * FROM v").documents[0]["rows"] == [{"s": "tea", "n": 1}]


def test_a_plan_before_the_first_run_lists_what_it_would_make_and_makes_nothing(place):
    """Damage: a plan before the first run is refused."""
    place.write(ORDERS | {"in/1.csv": "id,name"})
    told = place.run("plan")
    assert told.status == 0
    assert told.out.splitlines() == [
        "+ create table t: tables/t.sql",
        "+ create source orders: sources/orders.sql",
        "+ create materialized view v: views/v.sql",
    ]
    assert not (place.root / "data").exists()
