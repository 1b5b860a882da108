"""What a person types is read as what it says, or refused where it stops making sense."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.algebra.notation import Excerpt
from strandline.controller.language import statements, unsupported
from strandline.controller.language.altering import AddColumns
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import (
    Assignment,
    Bracket,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
    Delete,
    Drop,
    Insert,
    Query,
    Update,
    parse,
    placed,
    split,
)
from strandline.errors import DefinitionError, Position
from strandline.frontier import Every, Refresh


def at(column: int, line: int = 1) -> Position:
    """A place, on the first line if no other is said."""
    return Position(line, column)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("CREATE TABLE t (a INT, `b c` DECIMAL(10,2))", CreateTable("t", "a INT, `b c` DECIMAL(10,2)")),
        ("CREATE TABLE t (a (INT))", CreateTable("t", "a (INT)")),
        ("create table if not exists t (a int)", CreateTable("t", "a int", if_not_exists=True)),
        (
            "CREATE TABLE t (`check` INT COMMENT 'NOT NULL', unique STRING, s STRUCT<a: ARRAY<INT>, `b>`: INT>);",
            CreateTable("t", "`check` INT COMMENT 'NOT NULL', unique STRING, s STRUCT<a: ARRAY<INT>, `b>`: INT>"),
        ),
        (
            "CREATE TABLE t (a INT) KEEP HISTORY FOR '1 hour'",
            CreateTable("t", "a INT", keep_history="1 hour"),
        ),
        (
            "CREATE SOURCE s (a INT) USING files OPTIONS (path '/d', header = 'true')",
            CreateSource("s", "a INT", "files", {"path": "/d", "header": "true"}),
        ),
        (
            "CREATE SOURCE s (a INT) FROM KAFKA (connection = broker, topic 'x', debug, n = 3)",
            CreateSource("s", "a INT", "kafka", {"connection": "broker", "topic": "x", "debug": "true", "n": "3"}),
        ),
        (
            (
                "CREATE SOURCE s (a INT) FROM kafka (topic = t) KEY (a, `b c`) KEY FORMAT Text VALUE FORMAT JSON "
                "INCLUDE offset, KEY AS k ENVELOPE Upsert KEEP HISTORY FOR '1 day'"
            ),
            CreateSource(
                "s",
                "a INT",
                "kafka",
                {
                    "topic": "t",
                    "key": "a,b c",
                    "key_format": "text",
                    "format": "json",
                    "include_offset": "offset",
                    "include_key": "k",
                    "envelope": "upsert",
                },
                keep_history="1 day",
            ),
        ),
        (
            "CREATE SOURCE s (a INT) USING kafka OPTIONS (topic 't') FORMAT csv",
            CreateSource("s", "a INT", "kafka", {"topic": "t", "format": "csv"}),
        ),
        ("create source if not exists s from clock", CreateSource("s", "", "clock", {}, if_not_exists=True)),
        ("CREATE SOURCE s FROM postgres ()", CreateSource("s", "", "postgres", {})),
        (
            (
                "CREATE TABLE t (a INT) FROM SOURCE bank (REFERENCE 'public.t', on_error = continue) "
                "KEEP HISTORY FOR '2 h'"
            ),
            CreateSourceTable("t", "a INT", "bank", "public.t", {"on_error": "continue"}, keep_history="2 h"),
        ),
        (
            "CREATE CONNECTION pg TO Postgres (host = 'h', password 'env:PW')",
            CreateConnection("pg", "postgres", {"host": "h", "password": "env:PW"}),
        ),
        ("CREATE CONNECTION IF NOT EXISTS pg TO x", CreateConnection("pg", "x", {}, if_not_exists=True)),
        ("CREATE OR REPLACE CONNECTION pg TO x", CreateConnection("pg", "x", {}, replaces=True)),
        ("DROP CONNECTION pg", Drop("connection", "pg", if_exists=False)),
        (
            "CREATE SOURCE s (a INT) USING files OPTIONS (path '/d') KEEP HISTORY FOR '2 days'",
            CreateSource("s", "a INT", "files", {"path": "/d"}, keep_history="2 days"),
        ),
        (
            "CREATE MATERIALIZED VIEW v AS\n  SELECT a FROM t",
            CreateView("v", "SELECT a FROM t", at(3, line=2)),
        ),
        (
            "CREATE MATERIALIZED VIEW v KEEP HISTORY FOR '1 hour' AS TABLE t;",
            CreateView("v", "TABLE t", at(57), keep_history="1 hour"),
        ),
        (
            "CREATE MATERIALIZED VIEW v REFRESH ON COMMIT AS TABLE t",
            CreateView("v", "TABLE t", at(49)),
        ),
        (
            (
                "CREATE MATERIALIZED VIEW v REFRESH EVERY '1 day' ALIGNED TO '2026-01-01 06:00:00+02:00', "
                "every '90 s', AT CREATION, AT '2026-01-02T00:00:00.5Z' KEEP HISTORY FOR '2 days' AS TABLE t"
            ),
            CreateView(
                "v",
                "TABLE t",
                at(174),
                refresh=Refresh(
                    (Every(86_400_000, 1_767_240_000_000), Every(90_000)), (1_767_312_000_500,), at_creation=True
                ),
                keep_history="2 days",
            ),
        ),
        (
            "CREATE MATERIALIZATION m INTO duckdb OPTIONS (path '/f') AS v TO t KEY (a, b), w",
            CreateMaterialization("m", "duckdb", {"path": "/f"}, (Bind("v", "t", ("a", "b")), Bind("w", "w", ()))),
        ),
        ("DROP MATERIALIZED VIEW IF EXISTS v", Drop("materialized view", "v", if_exists=True)),
        ("INSERT INTO t VALUES (1, 'a;b');", Insert("t", (), Excerpt("VALUES (1, 'a;b')", at(15)))),
        (
            "insert into t (a, `B c`)\nselect 1, 2",
            Insert("t", (("a", at(16)), ("B c", at(19))), Excerpt("select 1, 2", at(1, line=2))),
        ),
        ("INSERT INTO t (SELECT 1)", Insert("t", (), Excerpt("(SELECT 1)", at(15)))),
        (
            "INSERT INTO t (`select`, `from`) VALUES (1, 2)",
            Insert("t", (("select", at(16)), ("from", at(26))), Excerpt("VALUES (1, 2)", at(34))),
        ),
        ("DELETE FROM t", Delete("t", "t", None)),
        ("DELETE FROM t WHERE a IN (1, 2) ;", Delete("t", "t", Excerpt("a IN (1, 2)", at(21)))),
        ("DELETE FROM `a b` AS x WHERE x.a = 1", Delete("a b", "x", Excerpt("x.a = 1", at(30)))),
        ("DELETE FROM t x WHERE true", Delete("t", "x", Excerpt("true", at(23)))),
        (
            "UPDATE t SET a = f(a, 1), b = 'x' WHERE c > 2",
            Update(
                "t",
                "t",
                (
                    Assignment("a", at(14), Excerpt("f(a, 1)", at(18))),
                    Assignment("b", at(27), Excerpt("'x'", at(31))),
                ),
                Excerpt("c > 2", at(41)),
            ),
        ),
        ("begin transaction", Bracket("BEGIN")),
        ("COMMIT", Bracket("COMMIT")),
        ("rollback ;", Bracket("ROLLBACK")),
        ("WITH x AS (SELECT 1) SELECT * FROM x", Query("WITH x AS (SELECT 1) SELECT * FROM x")),
        ("\n  FROM t |> WHERE a > 1;", Query("\n  FROM t |> WHERE a > 1")),
        ("(SELECT 1) UNION (SELECT 2)", Query("(SELECT 1) UNION (SELECT 2)")),
    ],
)
def test_each_statement_is_read_as_what_it_says(text: str, statement: statements.Statement) -> None:
    """Else a definition would mean something else than its author wrote."""
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ("','", "s"),
        ("'where'", "s"),
        ("'('", "s"),
        ("'set s = ''x'', t = 1'", "s"),
        ("concat(s, ',', 'WHERE')", "s"),
        ("(SELECT max(v.a) FROM v WHERE v.id = t.id)", "t.s"),
        ("CASE WHEN a IN (1, 2) THEN 'a, b' ELSE \"where\" END", "`s`"),
        ("array(1, 2)[0] + `where`", "s"),
        ("transform(xs, x -> x + 1)", "s"),
    ],
)
def test_commas_and_words_within_a_value_do_not_end_it(value: str, column: str) -> None:
    """Else UPDATE refuses a string for what is written in it, or sets a part of what was meant."""
    found = parse(f"UPDATE t SET {column} = {value}, n = 1 WHERE id = 'x, y where z'")

    assert isinstance(found, Update)
    assert [(each.column, each.value.text) for each in found.assignments] == [("s", value), ("n", "1")]
    assert found.where is not None
    assert found.where.text == "id = 'x, y where z'"


@pytest.mark.parametrize(
    ("text", "where", "wanted"),
    [
        ("CREATE TABEL t (a INT)", "line 1, column 8", "TABLE"),
        ("CREATE TABLE t a INT", "line 1, column 16", r"\("),
        ("CREATE TABLE t (a INT", "line 1, column 22", r"\)"),
        ("CREATE TABLE t ()", "line 1, column 17", "a column"),
        ("CREATE TABLE t ((a INT))", "line 1, column 17", "a column"),
        ("INSERT INTO t (a b) VALUES (1)", "line 1, column 18", r"\)"),
        ("CREATE TABLE t (a)", "line 1, column 18", "a type"),
        ("CREATE TABLE t (s STRUCT<a: INT)", "line 1, column 33", "'>'"),
        ("CREATE TABLE a.b (a INT)", "line 1, column 15", "one part"),
        ("CREATE TABLE 'a' (a INT)", "line 1, column 14", "a name"),
        ("CREATE TABLE `` (a INT)", "line 1, column 14", "a name has at least one character"),
        ("CREATE SOURCE s (a INT)\nUSING", "line 2, column 6", "a connector"),
        ("CREATE SOURCE s (a INT) kafka", "line 1, column 25", "FROM and a connector"),
        ("CREATE SOURCE s (a INT) FROM kafka (a = 1,)", "line 1, column 43", "an option"),
        ("CREATE SOURCE s (a INT) FROM kafka (a = )", "line 1, column 41", "a value"),
        ("CREATE SOURCE s (a INT) FROM kafka (a = 1 b = 2)", "line 1, column 43", ","),
        (
            "CREATE SOURCE s (a INT) FROM kafka (format = csv)\nFORMAT json",
            "line 2, column 1",
            "'format' is given twice",
        ),
        ("CREATE SOURCE s (a INT) FROM kafka INCLUDE offset,\n offset AS o", "line 2, column 2", "given twice"),
        ("CREATE SOURCE s (a INT) FROM kafka INCLUDE size", "line 1, column 44", "expected KEY, PARTITION, OFFSET"),
        ("CREATE SOURCE s (a INT) FROM kafka KEY (a, `b,c`)", "line 1, column 44", "comma in its name"),
        ("CREATE SOURCE s (a INT) FROM kafka KEY a", "line 1, column 40", r"\("),
        ("CREATE SOURCE s (a INT) FROM kafka ENVELOPE debezum", "line 1, column 45", "NONE, UPSERT or DEBEZIUM"),
        ("CREATE SOURCE s (a INT) FROM kafka FORMAT", "line 1, column 42", "a value"),
        ("CREATE SOURCE s (a INT) FROM kafka WITH (a = 1)", "line 1, column 36", "options stand in parentheses"),
        ("CREATE SOURCE s (a INT) FROM kafka KEEP HISTORY FOR '1 h' FORMAT csv", "line 1, column 59", "end"),
        ("CREATE TABLE t (a INT) FROM SOURCE s", "line 1, column 37", r"\("),
        ("CREATE TABLE t (a INT) FROM SOURCE s ()", "line 1, column 36", "what 't' is called upstream"),
        ("CREATE CONNECTION pg (a = 1)", "line 1, column 22", "TO"),
        ("CREATE CONNECTION pg TO", "line 1, column 24", "a kind of connection"),
        ("CREATE CONNECTION pg TO x (a = 1, A = 2)", "line 1, column 35", "'a' is given twice"),
        ("CREATE OR REPLACE CONNECTION IF NOT EXISTS c TO x", "line 1, column 44", "contradict each other"),
        ("CREATE OR REPLACE TABLE t (a INT)", "line 1, column 8", "or a MATERIALIZED VIEW is replaced"),
        ("CREATE TABLE t (a INT) KEEP HISTORY FOR ever", "line 1, column 41", "a quoted value"),
        ("CREATE MATERIALIZED VIEW v AS SHOW TABLES", "line 1, column 31", "a query"),
        ("CREATE MATERIALIZED VIEW v REFRESH AS TABLE t", "line 1, column 36", "ON COMMIT, EVERY, AT or AT CREATION"),
        ("CREATE MATERIALIZED VIEW v REFRESH EVERY 'often' AS TABLE t", "line 1, column 42", "'often' is no interval"),
        ("CREATE MATERIALIZED VIEW v REFRESH EVERY '0' AS TABLE t", "line 1, column 42", "write ON COMMIT"),
        ("CREATE MATERIALIZED VIEW v REFRESH AT 'noon' AS TABLE t", "line 1, column 39", "'noon' is no time"),
        ("CREATE MATERIALIZED VIEW v REFRESH AT '1969-01-01' AS TABLE t", "line 1, column 39", "before 1970"),
        ("CREATE MATERIALIZED VIEW v REFRESH ON COMMIT, AT CREATION AS TABLE t", "line 1, column 36", "leave out"),
        ("BEGIN WORK", "line 1, column 7", "end"),
        ("DROP TABLE t u", "line 1, column 14", "end"),
        ("CREATE SOURCE s (a INT) USING files OPTIONS (path '/d', path '/e')", "line 1, column 57", "twice"),
        ("UPDATE t SET a WHERE b", "line 1, column 16", "="),
        ("UPDATE t SET a = 1, A = 2", "line 1, column 21", "set twice"),
        ("UPDATE t SET u.a = 1", "line 1, column 14", "'u' is not the table"),
        ("UPDATE t SET a.b = 1", "line 1, column 14", "whole columns"),
        ("UPDATE t AS x SET t.a = 1", "line 1, column 19", "'t' is not the table that is updated, which is 'x'"),
        ("UPDATE t SET a = , b = 1", "line 1, column 18", "a value"),
        ("UPDATE t SET a = 1 WHERE", "line 1, column 25", "a condition"),
        ("DELETE FROM t WHER a = 1", "line 1, column 15", "expected WHERE, found 'WHER'"),
        ("UPDATE t SETT a = 1", "line 1, column 10", "expected SET, found 'SETT'"),
        ("DELETE t WHERE a", "line 1, column 8", "FROM"),
        ("DELETE FROM t WHERE a = = 1", "line 1", "a condition"),
        ("INSERT INTO t (a, A) VALUES (1, 2)", "line 1, column 19", "twice"),
        ("INSERT INTO t", "line 1, column 14", "VALUES or a query"),
        ("SELECT 1;\n SELECT 2", "line 2, column 2", "one statement is expected"),
        ("SELEC 1", "line 1, column 1", "did you mean SELECT"),
        ("'a'", "line 1, column 1", "no statement begins with 'a'"),
    ],
)
def test_a_wrong_statement_is_refused_where_it_is_wrong(text: str, where: str, wanted: str) -> None:
    """Else its author would have to look for the mistake."""
    with pytest.raises(DefinitionError, match=wanted) as refused:
        parse(text)

    assert where in str(refused.value)


@pytest.mark.parametrize("text", ["", "  ", ";", "-- nothing\n;"])
def test_a_text_without_a_statement_is_refused(text: str) -> None:
    """Else an empty file would look like one that was run."""
    with pytest.raises(DefinitionError, match="there is none"):
        parse(text)


WORDS = (
    "CREATE TABLE SOURCE MATERIALIZED VIEW MATERIALIZATION DROP IF NOT EXISTS INSERT INTO DELETE FROM UPDATE SET WHERE "
    "AS USING OPTIONS KEY TO KEEP HISTORY FOR VALUES SELECT WITH BEGIN COMMIT NULL PRIMARY CONSTRAINT CASE WHEN THEN "
    "INSTANCE REPLICAS ALTER ADD REPLICA IN "
    "END OVER INTERVAL DATE ARRAY STRUCT CAST LATERAL PIVOT t a b x INT STRING SHOW"
)
SIGNS = "( ) < > , ; . = * - [ ] -> :: |> @ $ ? { : 1 1e 's' \"d\" r'\\' ' ` /* \\ \x00 é"
PIECES = [*WORDS.split(), *SIGNS.split(" "), "`q r`", "--\n", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=16))
@settings(max_examples=2_000)
def test_whatever_is_typed_is_a_statement_or_refused_in_our_words(pieces: list[str]) -> None:
    """Else a misspelling ends in a traceback of the parser's."""
    for head in ("", "UPDATE t SET a = ", "DELETE FROM t WHERE ", "CREATE TABLE t (a ", "INSERT INTO t "):
        text = head + " ".join(pieces)
        with contextlib.suppress(DefinitionError):
            parse(text)


UNSUPPORTED = [
    ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE", "MERGE", at(1)),
    ("TRUNCATE TABLE t", "TRUNCATE is not supported; write DELETE FROM t", at(1)),
    ("ALTER VIEW t ADD COLUMN b INT", "ALTER is not supported; CREATE OR REPLACE a view", at(1)),
    ("EXPLAIN SELECT ';'", "EXPLAIN of a query is not supported; .*the name of a view", at(9)),
    ("\n SET a = 1", "SET is not supported; .*strandline.yml", at(2, line=2)),
    ("START TRANSACTION", "START is not supported; a transaction begins with BEGIN", at(1)),
    ("INSERT OVERWRITE t SELECT 1", "INSERT OVERWRITE", at(8)),
    ("INSERT INTO t BY NAME SELECT 1 AS a", "INSERT … BY", at(15)),
    ("INSERT INTO t PARTITION (a = 1) SELECT 2", "INSERT … PARTITION", at(15)),
    ("INSERT INTO t DEFAULT VALUES", "INSERT … DEFAULT", at(15)),
    ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "WITH … INSERT is not supported; .*INSERT INTO", at(22)),
    ("WITH x AS (SELECT 1) DELETE FROM t", "WITH … DELETE", at(22)),
    ("CREATE OR REPLACE TABLE t (a INT)", "CREATE OR REPLACE is not supported; DROP it first", at(8)),
    ("CREATE VIEW v AS SELECT 1", "CREATE VIEW is not supported; say MATERIALIZED VIEW", at(8)),
    ("CREATE TEMPORARY TABLE t (a INT)", "CREATE TEMPORARY", at(8)),
    ("CREATE DATABASE d", "CREATE DATABASE is not supported; a location has one set of names", at(8)),
    ("CREATE FUNCTION f AS 'x'", "CREATE FUNCTION", at(8)),
    ("CREATE TABLE t AS SELECT 1", "CREATE TABLE … AS is not supported; CREATE TABLE, then INSERT", at(16)),
    ("CREATE TABLE t LIKE u", "CREATE TABLE … LIKE", at(16)),
    ("CREATE TABLE t (a INT) USING parquet", "CREATE TABLE … USING", at(24)),
    ("CREATE TABLE t (a INT) PARTITIONED BY (a)", "CREATE TABLE … PARTITIONED", at(24)),
    ("CREATE TABLE t (a INT) TBLPROPERTIES ('a' = 'b')", "CREATE TABLE … TBLPROPERTIES", at(24)),
    ("CREATE MATERIALIZED VIEW v (a) AS SELECT 1", r"CREATE MATERIALIZED VIEW … \(", at(28)),
    ("DROP VIEW v", "DROP VIEW is not supported; say MATERIALIZED VIEW", at(6)),
    ("DROP TABLE t CASCADE", "DROP … CASCADE", at(14)),
    ("DELETE FROM t, u WHERE true", "DELETE … , is not supported", at(14)),
    ("DELETE FROM t USING u WHERE true", "DELETE … USING", at(15)),
    ("DELETE FROM t WHERE true LIMIT 1", "DELETE … LIMIT", at(26)),
    ("UPDATE t SET a = 1 FROM u WHERE true", "UPDATE … FROM", at(20)),
    ("UPDATE t SET a = 1 WHERE true RETURNING a", "UPDATE … RETURNING", at(31)),
]


@pytest.mark.parametrize(("text", "said", "position"), UNSUPPORTED)
def test_what_strandline_has_not_is_refused_by_its_own_name(
    text: str, said: str, position: Position, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a person takes it for a misspelling, or reads a parser's log."""
    with caplog.at_level(logging.DEBUG), pytest.raises(DefinitionError, match=said) as refused:
        parse(text)

    assert refused.value.position == position
    assert not caplog.records


@pytest.mark.parametrize("word", sorted(unsupported.STATEMENTS))
def test_every_statement_that_is_refused_by_name_gets_to_its_refusal(word: str) -> None:
    """Else a tokenizer that swallows what follows a word would hide the refusal."""
    with pytest.raises(DefinitionError, match=f"^{word} is not supported") as refused:
        parse(f"{word.lower()} something else;")

    assert refused.value.position == at(1)


@pytest.mark.parametrize(
    ("columns", "refused", "column"),
    [
        ("a INT NOT NULL", "NOT NULL", 23),
        ("a STRUCT<b: INT NOT NULL>", "NOT NULL", 33),
        ("a INT PRIMARY KEY", "PRIMARY KEY", 23),
        ("a INT, PRIMARY KEY (a)", "PRIMARY KEY", 24),
        ("a INT UNIQUE", "UNIQUE", 23),
        ("a INT, UNIQUE (a)", "UNIQUE", 24),
        ("a INT CHECK (a > 0)", "CHECK", 23),
        ("a INT, CHECK (a > 0)", "CHECK", 24),
        ("a INT, CONSTRAINT c CHECK (a > 0)", "CONSTRAINT", 24),
        ("a INT DEFAULT 1", "DEFAULT", 23),
        ("a INT COMMENT 'x' DEFAULT 1", "DEFAULT", 35),
        ("a INT GENERATED ALWAYS AS (b)", "GENERATED", 23),
        ("a INT REFERENCES u (b)", "REFERENCES", 23),
        ("a INT, FOREIGN KEY (a) REFERENCES u (b)", "FOREIGN KEY", 24),
    ],
)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t ({}) USING files",
        "CREATE SOURCE t ({}) USING files",
        "ALTER TABLE t ADD COLUMN {}",
        "ALTER TABLE t ADD COLUMNS ({})",
        "ALTER SOURCE t ADD COLUMN {}",
    ],
)
def test_a_constraint_that_nothing_would_check_is_refused_by_name(
    statement: str, columns: str, refused: str, column: int
) -> None:
    """Else a NULL gets into a column that its author believes to have none."""
    with pytest.raises(DefinitionError, match=f"^{refused} is not supported: nothing would check it") as error:
        parse(statement.format(columns))

    assert error.value.position == at(column + statement.index("{}") - len("CREATE TABLE t ("))


@pytest.mark.parametrize(
    ("added", "refused", "column"),
    [
        ("COLUMN a INT FIRST", "FIRST", 32),
        ("COLUMN a INT AFTER b", "AFTER", 32),
        ("COLUMNS (a INT COMMENT 'x' AFTER b)", "AFTER", 46),
        ("COLUMN IF NOT EXISTS a INT", "ADD COLUMN IF NOT EXISTS", 26),
        ("COLUMNS IF NOT EXISTS (a INT)", "ADD COLUMN IF NOT EXISTS", 27),
    ],
)
def test_what_add_column_cannot_do_is_refused_by_name(added: str, refused: str, column: int) -> None:
    """Damage: a column that is to stand first stands last, or an error names what is not wrong."""
    with pytest.raises(DefinitionError, match=f"^{refused} is not supported; ") as error:
        parse(f"ALTER TABLE t ADD {added}")

    assert error.value.position == at(column)


@pytest.mark.parametrize(
    ("added", "columns"),
    [
        ("COLUMN z INT", "z INT"),
        ("COLUMN first STRUCT<after: INT, `x`: ARRAY<INT>> COMMENT 'FIRST'", None),
        ("COLUMN if DECIMAL(10, 2), b INT", None),
        ("COLUMNS (a INT, `b c` MAP<INT, INT>)", "a INT, `b c` MAP<INT, INT>"),
    ],
)
def test_add_column_takes_what_create_table_takes(added: str, columns: str | None) -> None:
    """Damage: a column whose name or type has a word of the grammar in it cannot be added."""
    text = added.removeprefix("COLUMN ") if columns is None else columns
    assert parse(f"ALTER TABLE t ADD {added}") == AddColumns("t", text)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            "-- one; two\nCREATE TABLE t (a STRING);\n;INSERT INTO t VALUES (';') /* ; */;\n",
            ["CREATE TABLE t (a STRING)", "INSERT INTO t VALUES (';')"],
        ),
        (r"SELECT 'a\';b' ; SELECT r'\' ; SELECT 2", [r"SELECT 'a\';b'", r"SELECT r'\'", "SELECT 2"]),
        ('SELECT `a;``b;` FROM t;SELECT "x;"', ["SELECT `a;``b;` FROM t", 'SELECT "x;"']),
        ("/* a /* ; */ ; */ SELECT 1; SELECT 2 -- ;", ["SELECT 1", "SELECT 2"]),
        ("SELECT 1 -- \\\n; SELECT 2\n; SELECT 3 -- \\", ["SELECT 1", "SELECT 3"]),
    ],
)
def test_a_script_is_split_at_its_own_semicolons_only(script: str, found: list[str]) -> None:
    """Else a semicolon in a string, a name or a comment would cut a statement in two."""
    assert split(script) == found


@pytest.mark.parametrize("more", ["", " \\\n, n = 1Y", " \\\n -- \\\n, n = 'a'"])
def test_a_comment_that_ends_in_a_backslash_goes_on_in_the_next_line(more: str) -> None:
    """Damage: an UPDATE sets a column that Spark, which reads so everywhere else, finds in the comment."""
    found: Any = parse(f"UPDATE t SET s = r'\\\n', m = 2S -- \\\n, id = 5{more}\n WHERE id = 2")
    assert [(each.column, each.value.text) for each in found.assignments] == [("s", "r'\\\n'"), ("m", "2S")]
    assert found.where == Excerpt("id = 2", at(8, line=4 + more.count("\n")))


def test_a_statement_of_a_script_keeps_its_place() -> None:
    """Else an error in the third statement of a file names a line of the first."""
    _, second, third = (parse(each) for each in placed("SELECT 1;\n  DELETE FROM t WHERE\n a > 1; DROP TABLE t"))
    places: list[Any] = [second, third]

    assert isinstance(second, Delete)
    assert second.where == Excerpt("a > 1", at(2, line=3))
    assert [each.at for each in places] == [at(15, line=2), at(20, line=3)]
