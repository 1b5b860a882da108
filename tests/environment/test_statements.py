"""What a person types is read as what it says, or refused where it stops making sense."""

from __future__ import annotations

import pytest

from strandline.environment import statements
from strandline.environment.statements import (
    Bind,
    Bracket,
    CreateMaterialization,
    CreateSource,
    CreateTable,
    CreateView,
    Delete,
    Drop,
    Insert,
    Query,
    Update,
    parse,
    split,
)
from strandline.errors import DefinitionError, Position


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("CREATE TABLE t (a INT, `b c` DECIMAL(10,2))", CreateTable("t", "a INT, `b c` DECIMAL(10,2)")),
        ("create table if not exists t (a int)", CreateTable("t", "a int", if_not_exists=True)),
        (
            "CREATE SOURCE s (a INT) USING files OPTIONS (path '/d', header = 'true')",
            CreateSource("s", "a INT", "files", {"path": "/d", "header": "true"}),
        ),
        (
            "CREATE MATERIALIZED VIEW v AS\n  SELECT a FROM t",
            CreateView("v", "SELECT a FROM t", Position(2, 3)),
        ),
        (
            "CREATE MATERIALIZATION m INTO duckdb OPTIONS (path '/f') AS v TO t KEY (a, b), w",
            CreateMaterialization("m", "duckdb", {"path": "/f"}, (Bind("v", "t", ("a", "b")), Bind("w", "w", ()))),
        ),
        ("DROP MATERIALIZED VIEW IF EXISTS v", Drop("materialized view", "v", if_exists=True)),
        ("INSERT INTO t VALUES (1, 'a;b')", Insert("t", (), "VALUES (1, 'a;b')")),
        ("insert into t (a, b) select 1, 2", Insert("t", ("a", "b"), "select 1, 2")),
        ("DELETE FROM t", Delete("t", "true")),
        ("DELETE FROM t WHERE a IN (1, 2)", Delete("t", "a IN (1, 2)")),
        (
            "UPDATE t SET a = f(a, 1), b = 'x' WHERE c > 2",
            Update("t", (("a", "f(a, 1)"), ("b", "'x'")), "c > 2"),
        ),
        ("begin transaction", Bracket("BEGIN")),
        ("COMMIT", Bracket("COMMIT")),
        ("rollback", Bracket("ROLLBACK")),
        ("WITH x AS (SELECT 1) SELECT * FROM x", Query("WITH x AS (SELECT 1) SELECT * FROM x")),
    ],
)
def test_each_statement_is_read_as_what_it_says(text: str, statement: statements.Statement) -> None:
    """Else a definition would mean something else than its author wrote."""
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("text", "where", "wanted"),
    [
        ("CREATE TABEL t (a INT)", "line 1, column 8", "TABLE"),
        ("CREATE TABLE t a INT", "line 1, column 16", r"\("),
        ("CREATE TABLE t (a INT", "line 1, column 22", r"\)"),
        ("CREATE SOURCE s (a INT)\nUSING", "line 2, column 6", "a name"),
        ("BEGIN WORK", "line 1, column 7", "end"),
        ("DROP TABLE t u", "line 1, column 14", "end"),
        ("CREATE SOURCE s (a INT) USING files OPTIONS (path '/d', path '/e')", "line 1", "twice"),
        ("UPDATE t SET a WHERE b", "line 1, column 16", "="),
    ],
)
def test_a_wrong_statement_is_refused_where_it_is_wrong(text: str, where: str, wanted: str) -> None:
    """Else its author would have to look for the mistake."""
    with pytest.raises(DefinitionError, match=wanted) as refused:
        parse(text)

    assert where in str(refused.value)


def test_a_script_is_split_at_its_own_semicolons_only() -> None:
    """Else a semicolon in a string or a comment would cut a statement in two."""
    script = "-- one; two\nCREATE TABLE t (a STRING);\n;INSERT INTO t VALUES (';') /* ; */;\n"

    assert split(script) == ["CREATE TABLE t (a STRING)", "INSERT INTO t VALUES (';')"]
