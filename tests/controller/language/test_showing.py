"""SHOW, DESCRIBE, EXPLAIN and SUBSCRIBE are read as what they say, or refused where they stop making sense."""

from __future__ import annotations

import pytest

from strandline.controller.language.showing import LISTS, Show, Shown, Subscribe
from strandline.controller.language.statements import parse, split
from strandline.errors import DefinitionError, Position

READ = [
    *((f"show {each.value.lower()} -- all", Show(each)) for each in LISTS),
    ("SHOW MATERIALIZED VIEWS;", Show(Shown.VIEWS)),
    ("SHOW COLUMNS FROM `a;b`", Show(Shown.COLUMNS, "a;b")),
    ("SHOW COLUMNS IN t", Show(Shown.COLUMNS, "t")),
    ("DESCRIBE TABLE t", Show(Shown.COLUMNS, "t")),
    ("desc table", Show(Shown.COLUMNS, "table")),
    ("DESC `view`", Show(Shown.COLUMNS, "view")),
    ("SHOW CREATE MATERIALIZED VIEW v", Show(Shown.CREATE, "v")),
    ("SHOW CREATE index", Show(Shown.CREATE, "index")),
    ("EXPLAIN v", Show(Shown.PLAN, "v")),
    ("EXPLAIN VIEW `select`", Show(Shown.PLAN, "select")),
    ("SUBSCRIBE TO v", Subscribe("v")),
    ("SUBSCRIBE SELECT 1 AS n", Subscribe("SELECT 1 AS n")),
    ("SUBSCRIBE (SELECT ';')", Subscribe("(SELECT ';')")),
]

REFUSED = [
    ("SHOW", "expected TABLES, .*COLUMNS FROM or CREATE, found the end", Position(1, 5)),
    ("SHOW\n TABELS", "found 'TABELS'", Position(2, 2)),
    ("SHOW TABLES t", "expected the end of the statement, found 't'", Position(1, 13)),
    ("SHOW COLUMNS t", "expected FROM, found 't'", Position(1, 14)),
    ("DESCRIBE a.b", "a name has one part here", Position(1, 11)),
    ("EXPLAIN SELECT 1", "EXPLAIN of a query is not supported; EXPLAIN takes the name of a view", Position(1, 9)),
    ("SUBSCRIBE", "expected a collection or a query, found the end", Position(1, 10)),
    ("SHOWS TABLES", "did you mean SHOW", Position(1, 1)),
]


@pytest.mark.parametrize(("text", "statement"), READ, ids=str)
def test_what_shows_what_there_is_is_read(text: str, statement: Show | Subscribe) -> None:
    """Damage: a person who asks what there is gets an answer about something else."""
    assert parse(text) == statement


def test_a_script_is_cut_behind_what_it_shows_and_not_inside_a_name() -> None:
    """Damage: a semicolon in a quoted name ends a statement."""
    assert split("SHOW CREATE `a;b`; EXPLAIN v; SELECT 1") == ["SHOW CREATE `a;b`", "EXPLAIN v", "SELECT 1"]


@pytest.mark.parametrize(("text", "message", "at"), REFUSED, ids=str)
def test_what_is_wrong_is_refused_with_its_place(text: str, message: str, at: Position) -> None:
    """Damage: a person does not see which word is wrong."""
    with pytest.raises(DefinitionError, match=message) as caught:
        parse(text)
    assert caught.value.position == at
