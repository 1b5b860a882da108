"""Transactions in scripts: what stands between BEGIN and COMMIT happens at one time, or not at all."""

from __future__ import annotations

import pytest

from strandline.cli.asking import _refuse_loose_ends
from strandline.controller.language.statements import parse, placed
from strandline.errors import DefinitionError


@pytest.fixture
def project(place):
    """Two tables and a view over both."""
    made = place.sql(
        "CREATE TABLE a (id INT, v STRING); CREATE TABLE b (id INT, v STRING);"
        "CREATE MATERIALIZED VIEW pairs AS SELECT a.id, a.v, b.v AS w FROM a JOIN b ON a.id = b.id"
    )
    assert made.status == 0, made.err
    return place


@pytest.mark.spark
def test_a_script_commits_several_statements_at_one_time(project):
    """Damage: a view over two tables sees a moment that was never meant to be."""
    said = project.sql(
        "INSERT INTO b VALUES (7, 'old');"
        "BEGIN; INSERT INTO a VALUES (7, 'x'); UPDATE b SET v = 'new'; INSERT INTO b VALUES (8, 'y'); COMMIT;"
        "BEGIN TRANSACTION; DELETE FROM a; ROLLBACK; SELECT * FROM a; SELECT * FROM b ORDER BY id"
    )
    assert said.status == 0, said.err
    first, whole, *answers = said.documents
    assert (first["statement"], whole["statement"]) == ("Insert", "Transaction")
    assert whole["timestamp"] > first["timestamp"]
    rows = [answer["rows"] for answer in answers]
    assert rows == [[{"id": 7, "v": "x"}], [{"id": 7, "v": "new"}, {"id": 8, "v": "y"}]]
    before = project.run("query", "--json", "--as-of", str(whole["timestamp"] - 1), "SELECT * FROM a").documents
    assert before[0]["rows"] == []


@pytest.mark.spark
def test_a_statement_that_fails_takes_the_whole_transaction_with_it(project):
    """Damage: a script that stops in the middle leaves half of a transaction."""
    said = project.sql("BEGIN; INSERT INTO a VALUES (1, 'x'); CREATE TABLE c (id INT); COMMIT")
    assert said.status == 1
    assert "CreateTable cannot be part of a transaction" in said.err
    assert project.sql("SELECT count(*) AS n FROM a").documents[0]["rows"] == [{"n": 0}]


@pytest.mark.parametrize(
    ("script", "refusal"),
    [
        ("COMMIT", "COMMIT outside any transaction (at line 1, column 1)"),
        ("select 1;\n rollback", "ROLLBACK outside any transaction (at line 2, column 2)"),
        ("BEGIN;\nBEGIN", "BEGIN inside the transaction of line 1, column 1 (at line 2, column 1)"),
        ("BEGIN; COMMIT;  begin; select 1", "neither COMMIT nor ROLLBACK (at line 1, column 17)"),
    ],
)
def test_a_script_with_loose_ends_is_refused_before_any_of_it_is_run(script, refusal):
    """Damage: what was meant to be one transaction is committed piece by piece."""
    with pytest.raises(DefinitionError) as refused:
        _refuse_loose_ends([(each, parse(each)) for each in placed(script)])
    assert refusal in str(refused.value)


def test_a_script_whose_transactions_begin_and_end_is_accepted():
    """Damage: a script that is right cannot be run."""
    script = "select 1; begin; insert into a values (1); commit; begin transaction; rollback; select 2"
    _refuse_loose_ends([(each, parse(each)) for each in placed(script)])
